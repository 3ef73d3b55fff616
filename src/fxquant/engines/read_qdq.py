"""Read a converted (QDQ) graph: grids of tensors, chains of single users, kernel groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.kernels import Grid
from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams
from fxquant.graph.nodes import tensor_info
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.table import OpTable, activation_nodes

_INT8 = (torch.uint8, torch.int8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A weighted op with what its kernel can take in: a second tensor to add, a unary tail, the quantize at its end."""

    node: fx.Node
    kind: str
    x: fx.Node  # integers
    x_grid: Grid | None  # None if found at run time, by the nodes in `run_time_grid`
    x_scales: Tensor | None  # of each channel, beside `x_grid`
    x_most: int  # the greatest integer that there may be
    run_time_grid: tuple[fx.Node, fx.Node] | None
    holder: QuantizedWeight
    other: fx.Node | None  # integers, or float if it has no grid
    other_grid: Grid | None
    nodes: tuple[fx.Node, ...]  # the op, then the add and the tail where it has them
    tail: fx.Node | None
    quantize: fx.Node | None


def is_quantize(node: object) -> bool:
    """Tell whether a node quantizes to int8 or uint8 with plain numbers."""
    return isinstance(node, fx.Node) and node.target is torch_compat.QUANTIZE and node.args[5] in _INT8


def is_dequantize(node: object) -> bool:
    """Tell whether a node gives float32 from int8 or uint8 with plain numbers."""
    if not isinstance(node, fx.Node) or node.target is not torch_compat.DEQUANTIZE:
        return False
    return node.args[5] in _INT8 and node.kwargs.get("out_dtype") in (None, torch.float32)


def is_dynamic(node: object) -> bool:
    """Tell whether a node dequantizes a tensor whose grid was found at run time (onednn/lower_dynamic.py)."""
    return isinstance(node, fx.Node) and node.target is kernels.dequantize and isinstance(node.args[1], fx.Node)


def grid_of(node: fx.Node) -> Grid:
    """(scale, zero point) of a quantize or dequantize node."""
    scale, zero_point = node.args[1:3]
    assert isinstance(scale, float) and isinstance(zero_point, int)
    return scale, zero_point


def channel_grid(region: Region, x: object, node: fx.Node) -> QParams | None:
    """Return the grid of a depthwise convolution's input that has a scale for each channel and one zero point.

    The integers times the scale are what a kernel for a scale of 1 computes whose weight has that scale beside its own.
    """
    if not isinstance(x, fx.Node) or x.target is not torch_compat.DEQUANTIZE_CHANNEL or x.kwargs:
        return None
    grid, holder = QParams.of(x), weight_holder(region, node.args[1]) if len(node.args) > 1 else None
    if grid is None or holder is None or grid.axis != 1 or grid.dtype != torch.uint8:
        return None
    scale, zero = get_attr(region, str(grid.scale.target)), get_attr(region, str(grid.zero_point.target))
    outputs, inputs = holder.weight_shape[:2]
    convolves = len(node.args) > 6 and holder.spec.granularity == "per_channel" and holder.spec.axis == 0
    if not convolves or inputs != 1 or node.args[6] != len(scale) or not bool((zero == zero[0]).all()):
        return None
    return replace(grid, scale=scale.repeat_interleave(outputs // len(scale)), zero_point=int(zero[0]))


def dtype_of(node: fx.Node) -> torch.dtype:
    """Return the integer dtype of a quantize or dequantize node."""
    dtype = node.args[5]
    assert isinstance(dtype, torch.dtype)
    return dtype


def integers(node: fx.Node) -> fx.Node:
    """Return what a dequantize node reads, or a quantize node's source."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _most(dequantize: fx.Node) -> int:
    """Return the greatest integer that a dequantize node may read. Nobody holds the caller's to the end of the grid."""
    if integers(dequantize).op == "placeholder":
        return 255
    most = integers(integers(dequantize)).args[3] if is_dynamic(dequantize) else dequantize.args[-2]
    assert isinstance(most, int)
    return most


def single_user(node: fx.Node) -> fx.Node | None:
    """Return the one user of any kind: a node that is fused away leaves nothing behind to read the size of."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def quantize_after(node: fx.Node) -> fx.Node | None:
    """Return the quantize node that is the only user, if there is one."""
    user = single_user(node)
    return user if is_quantize(user) else None


def weight_holder(region: Region, weight: object) -> QuantizedWeight | None:
    """Return the holder of the integers that a dequantized weight is made from."""
    path = weight_path(region, weight)
    module = None if path is None else region.get_submodule(path)
    return module if isinstance(module, QuantizedWeight) else None


def weight_path(region: Region, weight: object) -> str | None:
    """Return the path of that holder."""
    if not isinstance(weight, fx.Node) or weight.target not in torch_compat.DEQUANTIZE_OPS:
        return None
    source = integers(weight)
    source = integers(source) if source.target is torch_compat.UNPACK else source
    path = str(source.target).rpartition(".")[0]
    return path if source.op == "get_attr" and isinstance(region.get_submodule(path), QuantizedWeight) else None


def _kernel_weight(region: Region, weight: object, axis: int) -> QuantizedWeight | None:
    """Return the same, if it is symmetric int8 per output channel, used in float32."""
    holder = weight_holder(region, weight)
    if holder is None or not isinstance(weight, fx.Node) or weight.kwargs or holder.spec.dtype != torch.int8:
        return None
    per_channel = holder.spec.granularity == "per_channel" and holder.spec.axis == axis
    fits = (per_channel or holder.spec.granularity == "per_tensor") and holder.weight_zero_point is None
    return holder if fits else None


def match_group(
    region: Region, node: fx.Node, ops: OpTable, tails: frozenset[str], residual: bool, float_sum: bool = False
) -> Group | str:
    """Return the group around a weighted op, or the reason why no int8 kernel takes it."""
    op = ops.of_node(node, region)
    assert op is not None
    if len(node.args) < 2:
        return "its weight is computed at run time"
    x, weight = node.args[0], node.args[1]
    dynamic, channels = is_dynamic(x), channel_grid(region, x, node)
    if not dynamic and channels is None and not is_dequantize(x):
        return "its input is not int8"
    assert isinstance(x, fx.Node)
    if not dynamic and channels is None and dtype_of(x) != torch.uint8:
        return "the kernel takes uint8 inputs"
    holder = _kernel_weight(region, weight, axis=op.channel_axis)
    if holder is None:
        return "the kernel takes symmetric int8 weights per output channel"
    add, other = _residual(region, node, ops, float_sum) if residual else (node, None)
    float_other = other is not None and not is_dequantize(other)
    last = add
    tail = single_user(last)
    tail_op = ops.of_node(tail, region) if tail is not None else None
    if tail is None or tail_op is None or tail_op.kind not in tails or tail.args[:1] != (last,) or float_other:
        tail = None  # a kernel with a float sum ends there
    last = tail if tail is not None else last
    if other is not None and not float_other and quantize_after(last) is None:
        return match_group(region, node, ops, tails, False)  # an int8 sum is written over an int8 tensor only
    return Group(
        node=node,
        kind=op.kind,
        x=integers(x),
        x_grid=None if dynamic else (1.0, channels.zero_point) if channels is not None else grid_of(x),
        x_scales=None if channels is None else channels.scale,
        x_most=_most(x),
        run_time_grid=(x.args[1], x.args[2]) if dynamic else None,  # type: ignore[arg-type]
        holder=holder,
        other=other if other is None or float_other else integers(other),
        other_grid=None if other is None or float_other else grid_of(other),
        nodes=tuple(dict.fromkeys((node, add, last))),
        tail=tail,
        quantize=None if float_other else quantize_after(last),
    )


def _residual(region: Region, node: fx.Node, ops: OpTable, float_sum: bool) -> tuple[fx.Node, fx.Node | None]:
    """(add, other operand) if the only user adds a tensor of the same shape that the kernel can take.

    That is a dequantized one if the sum is quantized again, or a float one.
    """
    add = single_user(node)
    op = ops.of_node(add, region) if add is not None else None
    if add is None or op is None or not op.adds or len(add.args) != 2 or add.kwargs:
        return node, None
    others = [operand for operand in activation_nodes(add, op) if operand is not node]
    if len(others) != 1:
        return node, None
    here, there = tensor_info(node), tensor_info(others[0])
    if here is None or there is None or here.shape != there.shape:
        return node, None
    if not is_dequantize(others[0]):
        return (add, others[0]) if float_sum and here.dtype == there.dtype == torch.float32 else (node, None)
    after = single_user(add)
    ends = is_quantize(after) or (after is not None and is_quantize(single_user(after)))
    return (add, others[0]) if ends and dtype_of(others[0]) == torch.uint8 else (node, None)
