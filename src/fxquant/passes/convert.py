"""Turn a calibrated graph into QDQ on plain integer tensors.

    FakeQuant(x)      ->  dequantize(quantize(x, scale, zero_point, ...), scale, zero_point, ...)
    conv(x) in int8   ->  F.conv2d(x, dequantize(weight), bias, ...)        weight: int8 buffer at the conv's path

Scales and zero points of activations are state that the graph reads: buffers of a `Grid` in the place of the FakeQuant.
A quantizer that saw no data, or an additive mask, has one that says so (numerics/grid.py), and the graph that runs is
made without its pair (fill_grids.py): what a model's state is called does not depend on its data.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.core.nodes import tensor_info
from fxquant.core.ops import OPS, OpTable
from fxquant.core.paths import set_submodule
from fxquant.numerics.affine import MIN_SCALE
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.grid import MASK, NO_DATA, OFF, Grid
from fxquant.passes.convert_weights import Tied, convert_weights
from fxquant.passes.halve_weights import halve_weights


def convert(region: Region, ops: OpTable = OPS, tied: Tied | None = None, waiting: bool = False) -> Region:
    """Replace quantizers by quantize/dequantize pairs and weighted ops by their functional form on int8 weights.

    `waiting` is for a model that saw no data at all: its grids come with a state_dict.
    """
    convert_weights(region, ops, tied, waiting)
    halve_weights(region, ops)
    grids: dict[str, Grid] = {}
    for node in list(region.graph.nodes):
        quantizer = quantizer_of(region, node)
        if quantizer is not None:
            _convert_quantizer(region, node, quantizer, grids, waiting)
    specs = region._region.quantizers
    region._region.quantizers = specs and {name: spec.stored() for name, spec in specs.items()}
    if region._region.quantizer_path:
        region.delete_submodule(region._region.quantizer_path)
        region._region.quantizer_path = ""
    for path, grid in grids.items():
        set_submodule(region, path, grid)
    region.graph.lint()
    region.recompile()
    return region


def quantizer_of(region: Region, node: fx.Node) -> FakeQuant | None:
    """The FakeQuant that a node calls, if it calls one."""
    if node.op != "call_module":
        return None
    module = region.get_submodule(str(node.target))
    return module if isinstance(module, FakeQuant) else None


def why_dropped(quantizer: FakeQuant) -> str | None:
    """Why a quantizer cannot be converted, or None if it can."""
    observer = quantizer.observer
    if quantizer.spec.dynamic or observer is None:
        return None
    if observer.saw_sentinel:
        return OFF[MASK]
    return None if quantizer.has_range else OFF[NO_DATA]


def _qparams(quantizer: FakeQuant, waiting: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point of a static quantizer; see numerics/grid.py for one without."""
    why = why_dropped(quantizer)
    if why is None:
        return quantizer.compute_qparams()
    no_data = math.nan if waiting else NO_DATA
    return torch.tensor(MASK if why == OFF[MASK] else no_data), torch.tensor(quantizer.spec.quant_min)


def _convert_quantizer(
    region: Region, node: fx.Node, quantizer: FakeQuant, grids: dict[str, Grid], waiting: bool
) -> None:
    source, path = node.args[0], str(node.target)
    assert isinstance(source, fx.Node)
    info = tensor_info(node)
    dtype = info.dtype if info is not None else torch.float32
    if not dtype.is_floating_point:
        result = source
    else:
        spec = quantizer.spec
        if not spec.dynamic and path not in grids:
            numbers = _qparams(quantizer, waiting)
            grids[path] = Grid(*numbers, spec.quant_min, spec.quant_max, spec.dtype)
        with region.graph.inserting_before(node):
            result = _emit(region.graph, source, quantizer, path, dtype)
        result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    region.graph.erase_node(node)


def _emit(graph: fx.Graph, source: fx.Node, quantizer: FakeQuant, path: str, dtype: torch.dtype) -> fx.Node:
    spec, name = quantizer.spec, source.name
    ends = (spec.quant_min, spec.quant_max, spec.dtype)
    out: dict[str, Any] = {} if dtype == torch.float32 else {"out_dtype": dtype}

    def call(function: Any, args: tuple[Any, ...], suffix: str, kwargs: dict[str, Any] | None = None) -> fx.Node:
        return graph.create_node("call_function", function, args, kwargs or {}, name=f"{name}_{suffix}")

    if dtype == torch.float64:
        source = graph.call_method("to", (source, torch.float32))
    if spec.dynamic:
        choose = compat.CHOOSE_QPARAMS_SYMMETRIC if spec.symmetric else compat.CHOOSE_QPARAMS
        both = call(
            choose, (source, spec.quant_min, spec.quant_max, max(MIN_SCALE, spec.min_scale), spec.dtype), "qparams"
        )
        scale, zero = call(operator.getitem, (both, 0), "scale"), call(operator.getitem, (both, 1), "zero_point")
        q = call(compat.QUANTIZE_TENSOR, (source, scale, zero, *ends), "q")
        return call(compat.DEQUANTIZE_TENSOR, (q, scale, zero, *ends), "dq", out)
    params = (graph.get_attr(f"{path}.scale"), graph.get_attr(f"{path}.zero_point"), *ends)
    if spec.rounding == "half_even":
        q = call(compat.QUANTIZE, (source, *params), "q")
    else:
        q = call(compat.QUANTIZE_ROUNDING, (source, *params, spec.rounding), "q")
    return call(compat.DEQUANTIZE, (q, *params), "dq", out)
