"""Turn a calibrated graph into QDQ on plain integer tensors.

    FakeQuant(x)      ->  dequantize(quantize(x, scale, zero_point, ...), scale, zero_point, ...)
    conv(x) in int8   ->  F.conv2d(x, dequantize(weight), bias, ...)        weight: int8 buffer at the conv's path

Scales and zero points of activations are plain numbers in the graph. A quantizer that saw no data, or an additive mask
(which a finite grid cannot hold), is left out, and the Decision of its kernel says so.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.core.nodes import tensor_info
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.plan import Decision, decision_of, note_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.convert_weights import Tied, convert_weights
from fxquant.passes.halve_weights import halve_weights

_DYNAMIC_EPS = torch.finfo(torch.float32).eps


def convert(region: Region, ops: OpTable = OPS, tied: Tied | None = None) -> Region:
    """Replace quantizers by quantize/dequantize pairs and weighted ops by their functional form on int8 weights."""
    _explain_dropped(region, ops)
    convert_weights(region, ops, tied)
    halve_weights(region, ops)
    for node in list(region.graph.nodes):
        quantizer = quantizer_of(region, node)
        if quantizer is not None:
            _convert_quantizer(region, node, quantizer)
    specs = region._region.quantizers
    region._region.quantizers = specs and {name: spec.stored() for name, spec in specs.items()}
    if region._region.quantizer_path:
        region.delete_submodule(region._region.quantizer_path)
        region._region.quantizer_path = ""
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
        return "carries an additive mask (-inf or the dtype's minimum)"
    return None if quantizer.has_range else "saw no data in calibration"


def _explain_dropped(region: Region, ops: OpTable) -> None:
    for node in region.graph.nodes:
        decision, op = decision_of(node), ops.of_node(node, region)
        if decision is None or op is None or note_of(node) is None:
            continue
        for operand in (*activation_nodes(node, op), *node.users):
            quantizer = quantizer_of(region, operand)
            reason = why_dropped(quantizer) if quantizer is not None else None
            if reason is not None:
                node.meta["decision"] = Decision(
                    kind=decision.kind,
                    status="float",
                    reason=f"its tensor {operand.args[0]} {reason}",
                    rule=decision.rule,
                )


def _convert_quantizer(region: Region, node: fx.Node, quantizer: FakeQuant) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    info = tensor_info(node)
    dtype = info.dtype if info is not None else torch.float32
    if why_dropped(quantizer) is not None or not dtype.is_floating_point:
        result = source
    else:
        with region.graph.inserting_before(node):
            result = _emit(region.graph, source, quantizer, dtype)
        result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    region.graph.erase_node(node)


def _emit(graph: fx.Graph, source: fx.Node, quantizer: FakeQuant, dtype: torch.dtype) -> fx.Node:
    spec, name = quantizer.spec, source.name
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    out: dict[str, Any] = {} if dtype == torch.float32 else {"out_dtype": dtype}

    def call(function: Any, args: tuple[Any, ...], suffix: str, kwargs: dict[str, Any] | None = None) -> fx.Node:
        return graph.create_node("call_function", function, args, kwargs or {}, name=f"{name}_{suffix}")

    if dtype == torch.float64:
        source = graph.call_method("to", (source, torch.float32))
    if spec.dynamic:
        choose = compat.CHOOSE_QPARAMS_SYMMETRIC if spec.symmetric else compat.CHOOSE_QPARAMS
        both = call(
            choose, (source, spec.quant_min, spec.quant_max, max(_DYNAMIC_EPS, spec.min_scale), spec.dtype), "qparams"
        )
        scale, zero = call(operator.getitem, (both, 0), "scale"), call(operator.getitem, (both, 1), "zero_point")
        q = call(compat.QUANTIZE_TENSOR, (source, scale, zero, *grid), "q")
        return call(compat.DEQUANTIZE_TENSOR, (q, scale, zero, *grid), "dq", out)
    scale_value, zero_value = (tensor.item() for tensor in quantizer.compute_qparams())
    params = (float(scale_value), int(zero_value), *grid)
    if spec.rounding == "half_even":
        q = call(compat.QUANTIZE, (source, *params), "q")
    else:
        q = call(compat.QUANTIZE_ROUNDING, (source, *params, spec.rounding), "q")
    return call(compat.DEQUANTIZE, (q, *params), "dq", out)
