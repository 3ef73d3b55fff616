"""Weighted ops in a converted graph: what their kernel takes in, and their geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from fxquant.engines.native.activations import Act
from fxquant.engines.native.read_acts import act_of, is_channel_quantize
from fxquant.engines.native.reader import Reader, readers
from fxquant.engines.native.shapes import Shape
from fxquant.engines.native.values import round_up
from fxquant.engines.onednn.support import explicit_padding
from fxquant.engines.read_qdq import is_dequantize, is_quantize, single_user, weight_holder
from fxquant.graph import torch_compat
from fxquant.ops.table import Op, argument

Pads = tuple[int, ...]  # [front,] top, left, [back,] bottom, right
CONVS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
TRANSPOSED = {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A weighted op with what its kernel takes in."""

    node: fx.Node
    kind: str
    nodes: tuple[fx.Node, ...]  # in order; the output is that of the last
    other: fx.Node | None = None
    act: Act | None = None
    quantize: fx.Node | None = None


def is_handed_in(node: fx.Node) -> bool:
    """Tell whether a node reads integers of an input, which need not keep to their grid, beside quantized tensors."""
    waiting, seen = [node], set[fx.Node]()
    while waiting:
        found = waiting.pop()
        if found in seen or found.target in torch_compat.QUANTIZE_OPS:
            continue
        seen.add(found)
        if found.op == "placeholder":
            return True
        waiting += found.all_input_nodes
    return False


def find_group(reader: Reader, node: fx.Node) -> Group | None:
    """Return the group around a weighted op with integer weights; None for other nodes."""
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind not in ("linear", *CONVS, *TRANSPOSED) or node.op != "call_function" or len(node.args) < 2:
        return None
    if weight_holder(reader.region, node.args[1]) is None:
        return None
    nodes, other, act = [node], None, None
    add = single_user(node)
    if add is not None and add not in reader.fused and op.kind not in TRANSPOSED:
        other = _other(reader, node, add)
        if other is not None:
            nodes.append(add)
    tail = single_user(nodes[-1])
    if tail is not None and tail not in reader.fused and tail.args[:1] == (nodes[-1],):
        act = act_of(reader, tail)
        if act is not None:
            nodes.append(tail)
    quantize = single_user(nodes[-1])
    if not is_quantize(quantize) and not is_channel_quantize(quantize):
        quantize = None
    if other is not None and is_dequantize(other) != (quantize is not None):
        # bytes are added to what becomes bytes, floats to what stays float: see finish.py
        return Group(node=node, kind=op.kind, nodes=(node,))
    return Group(
        node=node,
        kind=op.kind,
        nodes=(*nodes, *((quantize,) if quantize is not None else ())),
        other=other,
        act=act,
        quantize=quantize,
    )


def _other(reader: Reader, node: fx.Node, add: fx.Node) -> fx.Node | None:
    """Return what a sum adds to an op's output, if it is a tensor of the same shape."""
    op = reader.table.of_node(add, reader.region)
    if op is None or op.kind != "add" or len(add.args) != 2 or add.kwargs:
        return None
    others = [operand for operand in add.args if operand is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or others[0].op == "get_attr":
        return None
    return others[0] if _dims(reader, others[0]) == _dims(reader, node) else None


def _dims(reader: Reader, node: fx.Node) -> tuple[int, ...] | None:
    shape = reader.shapes.get(node)
    return shape.dims if isinstance(shape, Shape) and shape.batched else None


def padding_of(reader: Reader, node: fx.Node) -> Pads | None:
    """Return the padding of a convolution with integer weights; None for other nodes."""
    found = _conv(reader, node)
    return None if found is None else pads_of(node, found[0], found[1][2:])


def _conv(reader: Reader, node: fx.Node) -> tuple[Op, tuple[int, ...]] | None:
    """Return what op a convolution with integer weights is, and the shape of these; None for other nodes."""
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind not in CONVS or node.op != "call_function" or len(node.args) < 2:
        return None
    holder = weight_holder(reader.region, node.args[1])
    return None if holder is None else (op, tuple(holder.weight_shape))


def grain_of(reader: Reader, node: fx.Node, channels: int) -> int:
    """Tell of how many bytes pixels of a tensor are to be multiples: of a vector's, where a depthwise op reads it.

    Loads that cross lines of memory take twice the time. So such pixels may be a third larger for it, but no more.
    """
    width = reader.machine.width
    worth = channels > width and 3 * round_up(channels, width) <= 4 * round_up(channels)
    found = [_conv(reader, user) for user in readers(node)] if worth else []
    return width if any(conv is not None and conv[1][:2] == (channels, 1) for conv in found) else 16


def pads_of(node: fx.Node, op: Op, kernel: tuple[int, ...]) -> Pads:
    padding, dilation = argument(node, op, 4, 0), as_tuple(argument(node, op, 5, 1), len(kernel))
    if padding == "same" and explicit_padding(padding, kernel, dilation) is None:
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        low = [total // 2 for total in totals]
        high = [total - first for total, first in zip(totals, low, strict=True)]
    else:
        low = high = list(explicit_padding(padding, kernel, dilation) or ())
    if len(kernel) == 1:
        low, high = [0, *low], [0, *high]
    return (*low, *high)


def as_tuple(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)
