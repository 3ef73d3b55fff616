"""Read a converted (QDQ) graph: grids of tensors, chains of single users, kernel groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from fxquant.core import compat
from fxquant.core.graph import Region, tensor_info
from fxquant.core.ops import OpTable, activation_nodes
from fxquant.engines.kernels import Grid
from fxquant.passes.convert_weights import QuantizedWeight

_INT8 = (torch.uint8, torch.int8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A weighted op with what its kernel can take in: a second tensor to add, a unary tail, the quantize at its end."""

    node: fx.Node
    kind: str
    x: fx.Node  # integers
    x_grid: Grid
    holder: QuantizedWeight
    other: fx.Node | None
    other_grid: Grid | None
    nodes: tuple[fx.Node, ...]  # the op, then the add and the tail where it has them
    tail: fx.Node | None
    quantize: fx.Node | None


def is_quantize(node: object) -> bool:
    """Whether a node quantizes to int8 or uint8 with plain numbers."""
    return isinstance(node, fx.Node) and node.target is compat.QUANTIZE and node.args[5] in _INT8


def is_dequantize(node: object) -> bool:
    """Whether a node gives float32 from int8 or uint8 with plain numbers."""
    if not isinstance(node, fx.Node) or node.target is not compat.DEQUANTIZE:
        return False
    return node.args[5] in _INT8 and node.kwargs.get("out_dtype") in (None, torch.float32)


def grid_of(node: fx.Node) -> Grid:
    """(scale, zero point) of a quantize or dequantize node."""
    scale, zero_point = node.args[1:3]
    assert isinstance(scale, float) and isinstance(zero_point, int)
    return scale, zero_point


def dtype_of(node: fx.Node) -> torch.dtype:
    """The integer dtype of a quantize or dequantize node."""
    dtype = node.args[5]
    assert isinstance(dtype, torch.dtype)
    return dtype


def integers(node: fx.Node) -> fx.Node:
    """What a dequantize node reads, or a quantize node's source."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def quantize_after(node: fx.Node) -> fx.Node | None:
    """The quantize node that is the only user, if there is one."""
    user = only_user(node)
    return user if is_quantize(user) else None


def holder_of(region: Region, weight: object) -> QuantizedWeight | None:
    """The symmetric per-channel int8 weight that a dequantize node reads, if it is one."""
    if not isinstance(weight, fx.Node) or weight.target is not compat.DEQUANTIZE_CHANNEL or weight.kwargs:
        return None
    path = str(integers(weight).target).rpartition(".")[0]
    module = region.get_submodule(path)
    if not isinstance(module, QuantizedWeight) or module.weight.dtype != torch.int8:
        return None
    return module if module.weight_zero_point is None and module.spec.axis == 0 else None


def match_group(region: Region, node: fx.Node, ops: OpTable, tails: frozenset[str], residual: bool) -> Group | str:
    """The group around a weighted op, or the reason why no int8 kernel takes it."""
    op = ops.of_node(node, region)
    assert op is not None
    x, weight = node.args[0], node.args[1]
    if not is_dequantize(x):
        return "its input is not int8"
    assert isinstance(x, fx.Node)
    if dtype_of(x) != torch.uint8:
        return "the kernel takes uint8 inputs"
    holder = holder_of(region, weight)
    if holder is None:
        return "the kernel takes symmetric int8 weights per output channel"
    if holder.bias is not None and not holder.bias.is_floating_point():
        return "the kernel takes float biases"
    add, other = _residual(region, node, ops) if residual else (node, None)
    last = add
    tail = only_user(last)
    tail_op = ops.of_node(tail, region) if tail is not None else None
    if tail is None or tail_op is None or tail_op.kind not in tails or tail.args[:1] != (last,):
        tail = None
    last = tail if tail is not None else last
    return Group(
        node=node,
        kind=op.kind,
        x=integers(x),
        x_grid=grid_of(x),
        holder=holder,
        other=integers(other) if other is not None else None,
        other_grid=grid_of(other) if other is not None else None,
        nodes=tuple(dict.fromkeys((node, add, last))),
        tail=tail,
        quantize=quantize_after(last),
    )


def _residual(region: Region, node: fx.Node, ops: OpTable) -> tuple[fx.Node, fx.Node | None]:
    """(add, dequantize of the other operand) if the only user adds an int8 tensor of the same shape and requantizes."""
    add = only_user(node)
    op = ops.of_node(add, region) if add is not None else None
    if add is None or op is None or op.kind != "add" or len(add.args) != 2 or add.kwargs:
        return node, None
    others = [operand for operand in activation_nodes(add, op) if operand is not node]
    if len(others) != 1 or not is_dequantize(others[0]) or dtype_of(others[0]) != torch.uint8:
        return node, None
    here, there = tensor_info(node), tensor_info(others[0])
    if here is None or there is None or here.shape != there.shape:
        return node, None
    after = only_user(add)
    ends = is_quantize(after) or (after is not None and is_quantize(only_user(after)))
    return (add, others[0]) if ends else (node, None)
