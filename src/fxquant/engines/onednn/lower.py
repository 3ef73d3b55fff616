"""Lower a converted graph to int8 kernels: the oneDNN engine.

    dq -> conv -> [add dq] -> [relu] -> q     becomes one kernel from integers to integers (or two: finish.py)
    dq -> max_pool / reshape / cat ... -> q   runs on the integers where the grid stays the same
    what is left of q and dq                  becomes single-pass kernels

What has no kernel runs as before, dq -> float op -> q, and its Decision says why.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx, nn

from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.finish import lower_finish
from fxquant.engines.onednn.followers import lower_follower
from fxquant.engines.onednn.kernel_modules import Accumulate, ConvKernel, Kernels, LinearKernel, Output, Tail
from fxquant.engines.onednn.lower_dynamic import lower_dynamic
from fxquant.engines.onednn.lower_layout import lower_layout, mark
from fxquant.engines.onednn.runner import OneDnn
from fxquant.engines.onednn.support import TAILS, explicit_padding, supports, supports_float_sum, tail_of
from fxquant.engines.onednn.transposed import TransposedKernel, fits
from fxquant.engines.onednn.unsigned import nan_of, to_unsigned
from fxquant.engines.onednn.weight_only_linear import WeightOnlyLinear
from fxquant.engines.read_qdq import Group, dtype_of, grid_of, is_dequantize, is_quantize, match_group, weight_holder
from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.lowering import add_kernels, unlower
from fxquant.graph.notes import decision_of
from fxquant.graph.region import Region, kernel_path_of, lowering_of
from fxquant.ops.table import OPS, Layout, OpTable
from fxquant.passes.convert_weights import replace_node
from fxquant.passes.fill_grids import fill_grids

_PHASES = {"conv_transpose1d": "conv2d", "conv_transpose2d": "conv2d", "conv_transpose3d": "conv3d"}  # what runs them
_TRANSPOSED = tuple(_PHASES)
WEIGHTED = ("conv1d", "conv2d", "conv3d", *_TRANSPOSED, "linear")


def lower(region: Region, context: Context | None = None) -> None:
    """Rewrite the graph of a converted region, in place, to run on oneDNN. One that waits for its grids is left."""
    lowered = bool(kernel_path_of(region))
    if lowered and isinstance(lowering_of(region).runner, OneDnn):
        return  # before it was put into this model
    ops = OPS if context is None else context.ops
    if lowered or lowering_of(region).lower not in (None, lower):
        unlower(region)  # another engine runs it
    fill_grids(region)
    lowering = lowering_of(region)
    lowering.lower = lower
    if lowering.runner is None:
        lowering.runner = OneDnn()
    else:
        lowering.runner.renew()
    if lowering.waiting:
        return
    add_kernels(region, Kernels())
    lower_dynamic(region)
    to_unsigned(region)
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is not None and op.kind in WEIGHTED and node.op == "call_function":
            _lower_weighted(region, node, op.kind, ops)
    lower_finish(region, ops)
    for node in list(region.graph.nodes):
        if node.op in ("call_function", "call_method", "call_module"):
            lower_follower(region, node, ops)
    region.graph.eliminate_dead_code()
    for node in list(region.graph.nodes):
        _lower_boundary(region, node)
    lower_layout(region, ops)
    region.graph.lint()
    region.recompile()


def _lower_weighted(region: Region, node: fx.Node, kind: str, ops: OpTable) -> None:
    residual = kind in ("conv2d", "linear") and supports(kind, "relu", True)
    taken = _PHASES.get(kind, kind)
    tails = frozenset(name for name in TAILS if supports(taken, name, False))
    group = match_group(region, node, ops, tails, residual, kind == "linear" and supports_float_sum())
    if isinstance(group, Group) and group.other is not None and group.tail is not None:
        tail_kind = ops.of_node(group.tail, region)
        if tail_kind is None or not supports(kind, tail_kind.kind, True):
            group = match_group(region, node, ops, frozenset(), residual)
    reason = group if isinstance(group, str) else _emit(region, group, ops)
    decision = decision_of(node)
    if decision is not None and decision.status == "weight_only" and kind == "linear":
        _emit_weight_only(region, node)
    if reason is not None and decision is not None and decision.status in ("int8", "dynamic"):
        node.meta["decision"] = dataclasses.replace(decision, status="float", reason=f"{reason}; {decision.reason}")


def _emit(region: Region, group: Group, ops: OpTable) -> str | None:
    """Put the kernel in; the reason why not if it cannot be."""
    tail = tail_of(region, group.tail, ops) if group.tail is not None else Tail()
    if tail is None:
        return "its activation has settings that the kernel lacks"
    end = group.quantize or group.nodes[-1]
    accumulate = _accumulate(region, group)
    output = Output()
    if group.quantize is not None:
        scale, zero_point = grid_of(group.quantize)
        output = Output(dtype=dtype_of(group.quantize), scale=scale, zero_point=zero_point)
    most = group.x_most
    if group.kind == "linear":
        kernel: nn.Module = LinearKernel(group.holder, group.x_grid, output, tail, accumulate, most=most)
    elif group.kind in _TRANSPOSED:
        settings: Any = group.node.args[3:8]
        stride, padding, extra, groups, dilation = settings
        if isinstance(extra, fx.Node):
            return "its output size is given at run time"
        if not fits(group.holder.weight_shape[2:], stride, padding, extra, dilation):
            return "dilation, or an output padding beyond the kernel's reach"
        transposed = (stride, padding, extra, groups)
        kernel = TransposedKernel(group.holder, group.x_grid, output, tail, transposed, most=most)
    else:
        settings = group.node.args[3:7]
        stride, padding, dilation, groups = settings
        pads = explicit_padding(padding, group.holder.weight_shape[2:], dilation)
        if pads is None:
            return "'same' padding that is not symmetric"
        geometry = (stride, pads, dilation, groups)
        kernel = ConvKernel(group.holder, group.x_grid, output, tail, accumulate, geometry, group.x_scales, most=most)
    path = _install(region, group.node.name, kernel)
    with region.graph.inserting_before(end):
        args: tuple[Any, ...] = (group.x,) if group.other is None else (group.x, group.other)
        if group.x_grid is None:
            args = (group.x, group.other, group.run_time_grid)
        call = region.graph.call_module(path, args)
        result = call
        if group.quantize is not None:
            result = _clamp(region.graph, call, group.quantize)
    call.meta.update(group.node.meta)
    if group.kind != "linear":
        mark(call, Layout.CONV, *_summands(group))
    end.replace_all_uses_with(result)
    for dead in dict.fromkeys((end, *reversed(group.nodes))):
        region.graph.erase_node(dead)
    call.name = group.node.name
    return None


def _summands(group: Group) -> tuple[int, ...]:
    """Return the places of the tensors among a kernel's arguments, in the order in which the model adds them."""
    if group.other is None:
        return (0,)
    return (0, 1) if group.nodes[1].args[0] is group.node else (1, 0)


def _emit_weight_only(region: Region, node: fx.Node) -> None:
    holder = weight_holder(region, node.args[1])
    if holder is None or len(holder.weight_shape) != 2:
        return
    kernel = _install(region, node.name, WeightOnlyLinear(holder))
    with region.graph.inserting_before(node):
        call = region.graph.call_module(kernel, (node.args[0],))
    call.meta.update(node.meta)
    replace_node(region.graph, node, call)


def _install(region: Region, name: str, kernel: nn.Module) -> str:
    """Put a kernel into the region; its path."""
    container = region.get_submodule(kernel_path_of(region))
    assert isinstance(container, Kernels)
    return f"{kernel_path_of(region)}.{container.install(name, kernel)}"


def _kernel(region: Region, node: fx.Node) -> nn.Module | None:
    """Return the kernel that a node calls, if it calls one."""
    inside = node.op == "call_module" and str(node.target).startswith(f"{kernel_path_of(region)}.")
    return region.get_submodule(str(node.target)) if inside else None


def _accumulate(region: Region, group: Group) -> Accumulate | None:
    """Tell how a sum is added: over the second tensor, unless something may still read that after this kernel."""
    if group.other is None:
        return None
    first = _summands(group) == (1, 0)
    if group.other_grid is None:
        return Accumulate(grid=None, first=first)
    order = {node: index for index, node in enumerate(region.graph.nodes)}
    readers = [reader for user in group.other.users for reader in (user.users if is_dequantize(user) else (user,))]
    fresh = is_quantize(group.other) or str(group.other.target).startswith(f"{kernel_path_of(region)}.")
    done = all(_is_done(region, reader, group, order) for reader in readers)
    free = fresh and done and group.other is not group.x
    return Accumulate(grid=group.other_grid, copy=not free, first=first)


def _is_done(region: Region, reader: fx.Node, group: Group, order: dict[fx.Node, int]) -> bool:
    """Tell whether a reader is this sum itself, or an earlier kernel that made a tensor of its own from it."""
    if reader in group.nodes:
        return True
    makes_own = str(reader.target).startswith(f"{kernel_path_of(region)}.")
    return makes_own and order[reader] < order[group.node]


def _clamp(graph: fx.Graph, call: fx.Node, quantize: fx.Node) -> fx.Node:
    """Kernels saturate at the dtype's ends; a narrower grid needs its own."""
    low, high, dtype = quantize.args[3:6]
    info = torch.iinfo(dtype)  # type: ignore[arg-type]
    if (low, high) == (info.min, info.max):
        return call
    return graph.call_method("clamp_", (call, low, high))


def _lower_boundary(region: Region, node: fx.Node) -> None:
    if is_quantize(node):
        to_conv = all(isinstance(_kernel(region, user), ConvKernel) for user in node.users)
        with region.graph.inserting_before(node):
            function = kernels.quantize_channels_last if to_conv else kernels.quantize
            new = mark(region.graph.call_function(function, (*node.args, nan_of(node))), Layout.EACH, 0)
    elif node.target is torch_compat.QUANTIZE_CHANNEL and node.args[6] == torch.uint8:
        with region.graph.inserting_before(node):
            new = mark(region.graph.call_function(kernels.quantize_channels, node.args), Layout.EACH, 0)
    elif is_dequantize(node):
        with region.graph.inserting_before(node):
            new = mark(region.graph.call_function(kernels.dequantize, node.args[:3]), Layout.EACH, 0)
    else:
        return
    new.meta.update(node.meta)
    replace_node(region.graph, node, new)
