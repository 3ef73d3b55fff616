"""Ops between int8 kernels, on the integers themselves.

Data movement, max pooling and relu keep the grid, so they run on integers unchanged; add and mul have kernels; a mean
is taken over integers and rescaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.lower_layout import mark
from fxquant.engines.onednn.support import clamp_bounds
from fxquant.engines.read_qdq import dtype_of, grid_of, integers, is_dequantize, quantize_after, single_user
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import Layout, Op, OpTable, activation_nodes
from fxquant.passes.convert_weights import replace_node

Bounds = tuple[float | None, float | None]  # of a clamp; None for an open end
_RELU: Bounds = (0.0, None)


def lower_follower(region: Region, node: fx.Node, ops: OpTable) -> None:
    """Rewrite one op between dequantize and quantize, if there is a way to."""
    op = ops.of_node(node, region)
    if op is None:
        return
    operands = activation_nodes(node, op)
    if not operands or not all(map(is_dequantize, operands)):
        return
    if op.kind == "split":
        _lower_split(region, node, operands[0])
        return
    end: fx.Node | None = quantize_after(node)
    tail: Bounds | None = None
    if end is None and op.kind in ("add", "mul"):
        end, tail = _through_tail(region, node, ops)
    if end is None:
        return
    same = {(*grid_of(n), dtype_of(n)) for n in (*operands, end)}
    if len(same) == 1 and (op.moves or (op.kind == "interpolate" and _is_nearest(region, node))):
        _on_integers(region, node, operands, end)
    elif op.kind == "pad" and len(same) == 1 and node.target is F.pad and _pads_zeros(node):
        zero = grid_of(end)[1]
        width = node.args[1] if len(node.args) > 1 else node.kwargs["pad"]
        padded = (integers(operands[0]), width, "constant", zero)
        _replace(region, end, node, lambda g: mark(g.call_function(F.pad, padded), Layout.POOL, 0))
    elif op.kind == "max_pool" and len(same) == 1 and _is_max_pool2d(region, node):
        _max_pool(region, node, operands[0], end)
    elif op.kind == "relu" and len(same) == 1:
        zero = grid_of(end)[1]
        _replace(region, end, node, lambda g: g.call_method("clamp_min", (integers(operands[0]), zero)))
    elif op.kind in ("add", "mul") and len(operands) == 2 and dtype_of(end) == torch.uint8 and not node.kwargs:
        _binary(region, node, op, operands, end, tail)
    elif op.kind in ("mean", "adaptive_avg_pool"):
        _mean(region, node, op, operands[0])


def _replace(region: Region, end: fx.Node, node: fx.Node, make: Callable[[fx.Graph], fx.Node]) -> None:
    """Put what `make` adds in the place of the quantize node at the end."""
    with region.graph.inserting_before(end):
        new = make(region.graph)
    new.meta.update(node.meta)
    end.replace_all_uses_with(new)
    region.graph.erase_node(end)


def _through_tail(region: Region, node: fx.Node, ops: OpTable) -> tuple[fx.Node | None, Bounds | None]:
    """Return the quantize after a relu or a clamp that is the only user, and the bounds."""
    tail = single_user(node)
    op = ops.of_node(tail, region) if tail is not None else None
    if tail is None or op is None or op.kind not in ("relu", "clamp") or tail.args[:1] != (node,):
        return None, None
    module = region.get_submodule(str(tail.target)) if tail.op == "call_module" else None
    return quantize_after(tail), _RELU if op.kind == "relu" else clamp_bounds(tail, module)


def _on_integers(region: Region, node: fx.Node, operands: list[fx.Node], end: fx.Node) -> None:
    for operand in operands:
        node.replace_input_with(operand, integers(operand))
    end.replace_all_uses_with(node)
    region.graph.erase_node(end)


def _lower_split(region: Region, node: fx.Node, operand: fx.Node) -> None:
    """A split runs on integers if all of its parts are quantized to the same grid again."""
    ends = [quantize_after(part) for part in node.users]
    grid = (*grid_of(operand), dtype_of(operand))
    if any(end is None or (*grid_of(end), dtype_of(end)) != grid for end in ends):
        return
    node.replace_input_with(operand, integers(operand))
    for part, end in zip(list(node.users), ends, strict=True):
        assert end is not None
        end.replace_all_uses_with(part)
        region.graph.erase_node(end)


def _is_nearest(region: Region, node: fx.Node) -> bool:
    """Tell whether a resize copies pixels, and so needs no arithmetic."""
    if node.op == "call_module":
        mode = getattr(region.get_submodule(str(node.target)), "mode", None)
    elif node.target is F.interpolate:
        mode = node.args[3] if len(node.args) > 3 else node.kwargs.get("mode", "nearest")
    else:
        return False
    return mode in ("nearest", "nearest-exact")


def _pads_zeros(node: fx.Node) -> bool:
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    return mode == "constant" and value in (None, 0)


def _is_max_pool2d(region: Region, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(region.get_submodule(str(node.target)), nn.MaxPool2d)
    return node.target in (F.max_pool2d, torch.max_pool2d)


def _max_pool(region: Region, node: fx.Node, operand: fx.Node, end: fx.Node) -> None:
    args, kwargs = node.args[1:], dict(node.kwargs)
    if node.op == "call_module":
        module = region.get_submodule(str(node.target))
        assert isinstance(module, nn.MaxPool2d)
        args = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    kwargs.pop("return_indices", None)
    pooled = (integers(operand), *args)
    _replace(region, end, node, lambda g: mark(g.call_function(kernels.max_pool2d, pooled, kwargs), Layout.POOL, 0))


def _binary(region: Region, node: fx.Node, op: Op, operands: list[fx.Node], end: fx.Node, tail: Bounds | None) -> None:
    a, b = operands
    function = kernels.add if op.kind == "add" else kernels.mul
    args = (integers(a), grid_of(a), integers(b), grid_of(b), grid_of(end), tail == _RELU)
    low, high = _steps(end, tail)

    def make(graph: fx.Graph) -> fx.Node:
        made = mark(graph.call_function(function, args), Layout.EACH, 0, 2)
        if (low, high) == (0, 255) or (tail == _RELU and high == 255):
            return made
        return mark(graph.call_method("clamp_", (made, low, high)), Layout.EACH, 0)

    _replace(region, end, node, make)


def _steps(end: fx.Node, tail: Bounds | None) -> tuple[int, int]:
    """Return the ends of a quantize node's grid, inside the bounds of a clamp before it.

    A clamp and rounding may change places.
    """
    least, most = end.args[3:5]
    assert isinstance(least, int) and isinstance(most, int)
    scale, zero = grid_of(end)
    low, high = tail or (None, None)
    ends = (-math.inf if low is None else low / scale, math.inf if high is None else high / scale)
    first, last = (round(min(max(step, least - zero), most - zero)) + zero for step in ends)
    return first, last


def _mean(region: Region, node: fx.Node, op: Op, operand: fx.Node) -> None:
    dims: Any
    if op.kind == "adaptive_avg_pool":
        info, source = tensor_info(node), tensor_info(operand)
        if info is None or source is None or any(size != 1 for size in info.shape[2:]):
            return
        dims, keepdim = tuple(range(2, len(source.shape))), True
        size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
        if node.op == "call_module":
            size = getattr(region.get_submodule(str(node.target)), "output_size", None)
        sizes = size if isinstance(size, (tuple, list)) else (size,)
        if any(s != 1 for s in sizes):
            return
    else:
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        keepdim = bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
        if dims is None or "dtype" in node.kwargs:
            return
    with region.graph.inserting_before(node):
        new = region.graph.call_function(kernels.mean, (integers(operand), *grid_of(operand), dims, keepdim))
    new.meta.update(node.meta)
    replace_node(region.graph, node, mark(new, op.layout, 0))
