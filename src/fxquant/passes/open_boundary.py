"""Integers at the boundary of a region, for `input_quantized_indexes` and `output_quantized_indexes`.

prepare   x -> [FakeQuant] -> ...              y -> [FakeQuant] -> output        all in float, observed
convert   x (integers) -> dequantize -> ...    y -> quantize -> output (integers)
around    quantize -> call of the region -> dequantize, in the graph that calls a region with such a boundary
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError, StageError
from fxquant.graph import torch_compat
from fxquant.graph.boundary import Boundary
from fxquant.graph.context import Context
from fxquant.graph.grid import QParams
from fxquant.graph.nodes import TensorInfo, tensor_info
from fxquant.graph.notes import PrepareRequest
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.grid import why_off


def quantize_boundary(region: Region, context: Context) -> None:
    """Give the inputs and outputs that are to be integers a quantizer, through which all their users go.

    One that is there serves. The ids go into the region's Boundary.
    """
    request = preparation_of(region).request
    assert isinstance(request, PrepareRequest)
    inputs, outputs, spec = request.inputs, request.outputs, request.boundary or context.hardware.activation
    if not inputs and not outputs:
        return
    if context.training:
        spec = spec.trained()
    found_inputs: dict[int, QParams | str] = {}
    placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
    for index in inputs:
        if index >= len(placeholders):
            raise ConfigError(f"input_quantized_indexes names input {index}; the model has {len(placeholders)} inputs.")
        _need_float(placeholders[index], f"input {index}")
        found_inputs[index] = _through(region, placeholders[index], placeholders[-1], spec)
    results = output_nodes(region)
    found_outputs: dict[int, QParams | str] = {}
    for index in outputs:
        if index >= len(results):
            raise ConfigError(f"output_quantized_indexes names output {index}; the model has {len(results)} outputs.")
        found_outputs[index] = _before_output(region, results[index], index, spec)
    preparation_of(region).boundary = Boundary(inputs=found_inputs, outputs=found_outputs)


def open_boundary(region: Region, context: Context) -> None:
    """After convert: the quantize at an input and the dequantize at an output go, their grids into the Boundary."""
    boundary = preparation_of(region).boundary or Boundary()
    placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
    inputs: dict[int, QParams | str] = {}
    for index in boundary.inputs:
        node = placeholders[index]
        user = next(iter(node.users), None)
        assert user is not None
        inputs[index] = _grid_path(region, user, f"input {index}")
        _set_dtype(node, user.args[5])
        user.replace_all_uses_with(node)
        region.graph.erase_node(user)
    outputs: dict[int, QParams | str] = {}
    for index in boundary.outputs:
        node = output_nodes(region)[index]
        outputs[index] = _grid_path(region, node, f"output {index}")
        _replace_output(region, index, node.args[0])
        if not node.users:
            region.graph.erase_node(node)
    preparation_of(region).boundary = Boundary(inputs=inputs, outputs=outputs)


def connect_regions(region: Region, context: Context) -> None:
    """Give the regions that a graph calls the integers that they want, and take theirs."""
    for node in list(region.graph.nodes):
        if node.op != "call_module":
            continue
        called = region.get_submodule(str(node.target))
        if isinstance(called, Region) and (boundary := preparation_of(called).boundary) is not None:
            _connect(region, node, called, boundary)


def _connect(region: Region, node: fx.Node, called: Region, boundary: Boundary) -> None:
    graph, args = region.graph, list(node.args)
    for index, grid in boundary.inputs.items():
        with graph.inserting_before(node):
            args[index] = graph.call_function(torch_compat.QUANTIZE, (args[index], *_params(graph, node, called, grid)))
    node.args = tuple(args)
    for index, grid in boundary.outputs.items():
        picks = [user for user in node.users if user.target is operator.getitem and user.args[1] == index]
        single = tensor_info(node) is not None
        for value in (node,) if single else picks:
            with graph.inserting_before(value.next):
                params = _params(graph, node, called, grid)
                real = graph.call_function(torch_compat.DEQUANTIZE, (value, *params))
            real.meta.update({key: value.meta[key] for key in ("scope", "where", "tensor") if key in value.meta})
            value.replace_all_uses_with(real, delete_user_cb=lambda user, real=real: user is not real)  # type: ignore[misc]
            _set_dtype(value, params[4])


def output_nodes(region: Region) -> list[fx.Node]:
    """Return the leaves of what a region returns, in order."""
    output = next(node for node in reversed(region.graph.nodes) if node.op == "output")
    return pytree.tree_leaves(output.args[0])


def _replace_output(region: Region, index: int, new: object) -> None:
    output = next(node for node in reversed(region.graph.nodes) if node.op == "output")
    leaves, structure = pytree.tree_flatten(output.args[0])
    leaves[index] = new
    output.args = (pytree.tree_unflatten(leaves, structure),)


def _need_float(node: object, what: str) -> None:
    info = tensor_info(node) if isinstance(node, fx.Node) else None
    if info is None or not info.is_float:
        raise ConfigError(f"{what} is no float tensor in the example inputs, so it cannot be quantized.")


def _through(region: Region, node: fx.Node, last: fx.Node, spec: Spec) -> str:
    """Let all users of an input read it through one quantizer; its id."""
    calls = [user for user in node.users if _quantizer(region, user) is not None]
    if calls:
        call = calls[0]
        after = [user for user in node.users if user is not call]
        # the first quantizer may stand behind other users
        last.append(call)
    else:
        with region.graph.inserting_after(last):
            call = _add_quantizer(region, node, f"{node.name}_boundary", spec)
        after = [user for user in node.users if user is not call]
    for user in after:
        user.replace_input_with(node, call)
    quantizer = _quantizer(region, call)
    assert quantizer is not None
    return _static(quantizer)


def _before_output(region: Region, node: fx.Node, index: int, spec: Spec) -> str:
    _need_float(node, f"output {index}")
    quantizer = _quantizer(region, node)
    if quantizer is None:
        output = next(n for n in reversed(region.graph.nodes) if n.op == "output")
        with region.graph.inserting_before(output):
            call = _add_quantizer(region, node, f"{node.name}_boundary", spec)
        _replace_output(region, index, call)
        quantizer = _quantizer(region, call)
    assert quantizer is not None
    return _static(quantizer)


def _add_quantizer(region: Region, node: fx.Node, name: str, spec: Spec) -> fx.Node:
    preparation = preparation_of(region)
    container: Any = region.get_submodule(preparation.quantizer_path)
    container[name] = FakeQuant(spec, name).train(region.training)
    preparation.quantizers = {**(preparation.quantizers or {}), name: spec}
    call = region.graph.call_module(f"{preparation.quantizer_path}.{name}", (node,))
    call.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor") if key in node.meta})
    return call


def _quantizer(region: Region, node: object) -> FakeQuant | None:
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = region.get_submodule(str(node.target))
    return module if isinstance(module, FakeQuant) else None


def _static(quantizer: FakeQuant) -> str:
    spec = quantizer.spec
    if spec.dynamic or spec.rounding != "half_even":
        raise ConfigError(f"integers at the boundary need a static spec that rounds half to even; a rule gives {spec}.")
    return quantizer.name


def _grid_path(region: Region, node: fx.Node, what: str) -> str:
    """Tell where the grid stands that a quantize or dequantize node reads."""
    scale = node.args[1]
    assert isinstance(scale, fx.Node)
    path = str(scale.target).rpartition(".")[0]
    grid: Any = region.get_submodule(path)
    why = why_off(grid.scale)
    if why is None and grid.axis is not None:
        why = "has a scale for each channel"
    if why is not None:
        raise StageError(f"{what} cannot be integers: its quantizer {path!r} {why}.")
    return path


def _params(graph: fx.Graph, node: fx.Node, called: Region, grid: QParams | str) -> tuple[Argument, ...]:
    """Return what a quantize node around the call of a region is given; its grid is the region's."""
    if isinstance(grid, QParams):
        return grid.args
    module: Any = called.get_submodule(grid)
    state = (graph.get_attr(f"{node.target}.{grid}.{name}") for name in ("scale", "zero_point"))
    return (*state, module.quant_min, module.quant_max, module.dtype)


def _set_dtype(node: fx.Node, dtype: Argument) -> None:
    info = tensor_info(node)
    if info is not None and isinstance(dtype, torch.dtype):
        node.meta["tensor"] = TensorInfo(dtype=dtype, shape=info.shape)
