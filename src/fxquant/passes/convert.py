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

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, Target

from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.grid import QParams
from fxquant.graph.lowering import start_lowering
from fxquant.graph.nodes import tensor_info
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.affine import MIN_SCALE
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.grid import MASK, NO_DATA, OFF, Grid
from fxquant.passes.connect_reads import find_reads, put_values
from fxquant.passes.convert_weights import convert_weights
from fxquant.passes.find_quantizer import quantizer_of, why_dropped
from fxquant.passes.halve_weights import halve_weights


def convert(region: Region, context: Context) -> None:
    """Replace quantizers by quantize/dequantize pairs and weighted ops by their functional form on int8 weights."""
    waiting = context.uncalibrated
    read = find_reads(region)
    convert_weights(region, context.ops, context.tied, waiting)
    put_values(region, read)
    halve_weights(region, context.ops)
    grids: dict[str, Grid] = {}
    for node in list(region.graph.nodes):
        quantizer = quantizer_of(region, node)
        if quantizer is not None:
            _convert_quantizer(region, node, quantizer, grids, waiting)
    preparation = preparation_of(region)
    preparation.quantizers = preparation.quantizers and {
        name: spec.stored() for name, spec in preparation.quantizers.items()
    }
    if preparation.quantizer_path:
        region.delete_submodule(preparation.quantizer_path)
        preparation.quantizer_path = ""
    for path, grid in grids.items():
        set_submodule(region, path, grid)
    start_lowering(region)


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
            axis = spec.axis if spec.granularity == "per_channel" else None
            grids[path] = Grid(*numbers, spec.quant_min, spec.quant_max, spec.dtype, axis)
        with region.graph.inserting_before(node):
            result = _emit(region.graph, source, quantizer, path, dtype)
        result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    region.graph.erase_node(node)


def _emit(graph: fx.Graph, source: fx.Node, quantizer: FakeQuant, path: str, dtype: torch.dtype) -> fx.Node:
    spec, name = quantizer.spec, source.name
    ends = (spec.quant_min, spec.quant_max, spec.dtype)
    out: dict[str, Argument] = {} if dtype == torch.float32 else {"out_dtype": dtype}

    def call(
        function: Target, args: tuple[Argument, ...], suffix: str, kwargs: dict[str, Argument] | None = None
    ) -> fx.Node:
        return graph.create_node("call_function", function, args, kwargs or {}, name=f"{name}_{suffix}")

    if dtype == torch.float64:
        source = graph.call_method("to", (source, torch.float32))
    if spec.dynamic:
        choose = torch_compat.CHOOSE_QPARAMS_SYMMETRIC if spec.symmetric else torch_compat.CHOOSE_QPARAMS
        both = call(
            choose, (source, spec.quant_min, spec.quant_max, max(MIN_SCALE, spec.min_scale), spec.dtype), "qparams"
        )
        scale, zero = call(operator.getitem, (both, 0), "scale"), call(operator.getitem, (both, 1), "zero_point")
        q = call(torch_compat.QUANTIZE_TENSOR, (source, scale, zero, *ends), "q")
        return call(torch_compat.DEQUANTIZE_TENSOR, (q, scale, zero, *ends), "dq", out)
    grid = QParams(
        scale=graph.get_attr(f"{path}.scale"),
        zero_point=graph.get_attr(f"{path}.zero_point"),
        quant_min=spec.quant_min,
        quant_max=spec.quant_max,
        dtype=spec.dtype,
        axis=spec.axis if spec.granularity == "per_channel" else None,
        rounding=spec.rounding,
    )
    q = call(grid.quantize_op, (source, *grid.quantize_args), "q")
    return call(grid.dequantize_op, (q, *grid.args), "dq", out)
