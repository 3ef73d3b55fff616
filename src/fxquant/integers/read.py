"""Converted model -> Program.

    reference graph -> torch.export -> one step for each op on integers (read_ops.py)

The batch stays open where the graph lets it. Other sizes are those of the example inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fxquant.engines.example import example_of
from fxquant.errors import ConfigError, FxQuantError
from fxquant.export.exported import call_of, export_program
from fxquant.export.onnx.signature import bind, parameters_of
from fxquant.export.reference import reference_of
from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams
from fxquant.graph.region import Region
from fxquant.integers.operands import Weight
from fxquant.integers.program import Port, Program
from fxquant.integers.read_elementwise import pointwise
from fxquant.integers.read_ops import READ
from fxquant.integers.reader import Reader, fractions, name_of, on_grid
from fxquant.integers.scales import position_of
from fxquant.integers.values import Curve, Input, Whole

_LARGE = 2**31
_UNTAGGED = (torch.ops.aten.hardswish.default, torch.ops.aten.hardswish_.default, torch.ops.aten.log_sigmoid.default)


def read_program(model: nn.Module, example_inputs: object = None, *, caller: str) -> Program:
    """Return the program of a converted model of one graph."""
    tree = reference_of(model, caller)
    if not isinstance(tree, Region):
        raise ConfigError(
            f"{caller} needs a model that is one graph; of this one, parts run as Python code. Give such a part, or "
            "see fxquant.explain(model) for what keeps the rest out."
        )
    given = example_of(tree) if example_inputs is None else example_inputs
    example = bind(parameters_of(tree), *call_of(tree, given, None, caller))
    places = {node.name: str(node.meta["where"]) for node in tree.graph.nodes if node.meta.get("where")}
    try:
        return _read(export_program(tree, example, caller, dynamic_batch=True), places)
    except FxQuantError:  # its batch may be fixed; if it is something else, that is said now
        return _read(export_program(tree, example, caller), places)


def _read(exported: ExportedProgram, places: Mapping[str, str]) -> Program:
    reader = Reader(places)
    constants = {**exported.state_dict, **exported.constants}
    for spec in exported.graph_signature.input_specs:
        node = next(node for node in exported.graph.nodes if node.name == spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            reader.found[node] = Input(name=node.name)
        else:
            reader.found[node] = constants[str(spec.target)]
            node.meta["kept_as"] = str(spec.target)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            reader.found[node] = _value(reader, node)
    results = [spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    nodes = {node.name: node for node in exported.graph.nodes}
    outputs = tuple(_output(reader, nodes[name]) for name in results if name in nodes)
    return Program(
        inputs=tuple(reader.inputs),
        outputs=outputs,
        steps=tuple(reader.steps),
        constants=reader.constants,
        notes=tuple(reader.notes),
    )


def _value(reader: Reader, node: fx.Node) -> object:
    at = _arguments(reader, node)
    given = [value for value in _leaves(at) if not isinstance(value, (int, float, str, bool, type(None)))]
    if node.target in torch_compat.DEQUANTIZE_OPS:
        return _dequantize(reader, node, at)
    if node.target in torch_compat.QUANTIZE_OPS and not isinstance(at["input"], Tensor):
        return _quantize(reader, node, at)
    if all(isinstance(value, (Tensor, torch.dtype, torch.device, torch.layout)) for value in given):
        return _constant(reader, node)
    if isinstance(node.target, torch._ops.OpOverload):
        return _op(reader, node, at)
    if getattr(node.target, "__name__", "") == "getitem":
        values: Any = reader.found[node.args[0]]  # type: ignore[index]
        return values[node.args[1]]
    return None  # sizes, which the steps that need them know themselves


def _op(reader: Reader, node: fx.Node, at: Mapping[str, object]) -> object:
    assert isinstance(node.target, torch._ops.OpOverload)
    tensors = [value for value in at.values() if isinstance(value, (Whole, Curve, Input))]
    others = [value for value in at.values() if isinstance(value, (Tensor, Weight))]
    by_element = torch.Tag.pointwise in node.target.tags or node.target in _UNTAGGED
    is_pointwise = by_element and len(tensors) == 1 and not others
    if not tensors and "tensors" not in at:
        return None
    if is_pointwise and (isinstance(tensors[0], Curve) or node.target not in READ or "other" in at):
        if isinstance(tensors[0], Input):
            reader.refuse(node, f"it reads the argument {tensors[0].name!r} in float")
        return pointwise(reader, node, at)
    read = READ.get(node.target)
    if read is None:
        if str(node.target).startswith(("aten._assert", "aten.sym_")):
            return None
        reader.refuse(node, f"there are no integer steps for {node.target}")
    return read(reader, node, at)


def _arguments(reader: Reader, node: fx.Node) -> dict[str, object]:
    """Return what a node is given, by name, defaults included."""

    def look(value: object) -> object:
        if isinstance(value, fx.Node):
            return reader.found.get(value)
        return [look(each) for each in value] if isinstance(value, (list, tuple)) else value

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(index): look(value) for index, value in enumerate(node.args)}
    named = {slot.name: slot.default_value for slot in schema.arguments if slot.has_default_value()}
    named.update({slot.name: look(value) for slot, value in zip(schema.arguments, node.args, strict=False)})
    named.update({name: look(value) for name, value in node.kwargs.items()})
    return named


def _leaves(at: Mapping[str, object]) -> list[object]:
    flat: list[Any] = []
    for value in at.values():
        flat.extend(value if isinstance(value, list) else [value])
    return flat


def _constant(reader: Reader, node: fx.Node) -> object:
    """Return what follows from constants alone; sizes do, too, but are not known here."""

    reads = node.all_input_nodes
    if not reads or any(not isinstance(reader.found.get(each), Tensor) for each in reads):
        return None
    with torch.no_grad():
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), reader.found.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _port(grid: QParams, reader: Reader) -> Port:
    scale, zero = (_number(reader, value) for value in (grid.scale, grid.zero_point))
    if not bool((zero == zero.reshape(-1)[0]).all()):
        raise ConfigError("a tensor has several zero points; there are no integer steps for that.")
    return Port(
        name="",
        tensor="",
        scale=fractions(scale),
        axis=grid.axis,
        zero_point=int(zero.reshape(-1)[0]),
        low=grid.quant_min,
        high=grid.quant_max,
        dtype=str(grid.dtype).removeprefix("torch."),
        rounding=grid.rounding,
    )


def _number(reader: Reader, value: object) -> Tensor:
    return reader.found[value] if isinstance(value, fx.Node) else torch.tensor(value, dtype=torch.float64)


def _quantize(reader: Reader, node: fx.Node, at: Mapping[str, object]) -> Whole:
    grid = QParams.of(node)
    if grid is None or (isinstance(grid.scale, fx.Node) and not isinstance(reader.found[grid.scale], Tensor)):
        reader.refuse(node, "its scale is found at run time")
    return reader.quantize(node, at["input"], _port(grid, reader))


def _dequantize(reader: Reader, node: fx.Node, at: Mapping[str, object]) -> object:
    value = at["input"]
    grid = QParams.of(node)
    if grid is None or (isinstance(grid.scale, fx.Node) and not isinstance(reader.found[grid.scale], Tensor)):
        reader.refuse(node, "its scale is found at run time, or there is one for each group of a weight")
    if isinstance(value, Tensor):
        zero = _number(reader, grid.zero_point) if grid.zero_point is not None else torch.zeros(1)
        source: Any = node.args[0]
        name = source.meta.get("kept_as", source.name)
        integers = value if not bool(zero.any()) else (value.to(torch.int32) - _along(zero, value, grid.axis))
        return Weight(name, integers, fractions(_number(reader, grid.scale)), grid.axis)
    if isinstance(value, Input):
        return reader.quantize(node, value, _port(grid, reader))
    whole = reader.whole(node, value)
    return on_grid(whole.tensor, _port(grid, reader))


def _along(zero: Tensor, values: Tensor, axis: int | None) -> Tensor:
    shape = [1] * values.dim()
    if axis is not None:
        shape[axis] = -1
    return zero.to(torch.int32).reshape(shape)


def _odd_times_power(scale: Fraction) -> bool:
    """Tell whether a scale is k * 2^-p for an odd k that is not 1: a product that came after a sum."""
    return position_of(scale) is None and position_of(Fraction(1, scale.denominator)) is not None


def _output(reader: Reader, node: fx.Node) -> Port:
    value = reader.found[node]
    whole = reader.whole(node, value)
    if whole.grid is None and any(_odd_times_power(scale) for scale in whole.scale):
        reader.note(f"{name_of(node)!r} leaves the model as floats that are products: float32 rounds these on the way")
    low, high = (-_LARGE, _LARGE - 1) if whole.grid is None else (whole.grid.low, whole.grid.high)
    return Port(
        name=name_of(node),
        tensor=whole.tensor,
        scale=whole.scale,
        axis=whole.axis,
        zero_point=whole.zero,
        low=low,
        high=high,
        dtype="int64" if whole.grid is None else whole.grid.dtype,
        rounding="half_even",
    )
