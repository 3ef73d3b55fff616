"""Linears whose input is on the grid of its own range.

choose_qparams(x) -> scale, zero; quantize(x, scale, zero); dequantize(...); linear
  ->  one kernel that finds the range and quantizes; one that scales the gemm's numbers; the gemm

The range is that of the whole tensor, and samples are run one by one: such a program takes one sample.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

from fxquant.engines.native import dynamic
from fxquant.engines.native.arithmetic import check_weight
from fxquant.engines.native.dynamic import GRID_FLOATS, OwnRange
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.read_rows import dense_rows
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, collapse, dense
from fxquant.engines.read_qdq import weight_holder
from fxquant.graph import torch_compat

_CHOOSE = (torch_compat.CHOOSE_QPARAMS, torch_compat.CHOOSE_QPARAMS_SYMMETRIC)
_ENDS = ((0, 255, torch.uint8), (-128, 127, torch.int8), (0, 127, torch.uint8), (-64, 63, torch.int8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The nodes between a tensor of floats and the linears that take it on a grid of its own."""

    source: fx.Node
    choose: fx.Node
    nodes: tuple[fx.Node, ...]  # the last is the dequantize


def find_chain(reader: Reader, node: fx.Node) -> Chain | None:
    """Return the chain that ends at a dequantize node, if linears alone read it, and nothing else what is in it."""
    if node.target is not torch_compat.DEQUANTIZE_TENSOR or node.kwargs:
        return None
    quantize = node.args[0]
    if not isinstance(quantize, fx.Node) or quantize.target is not torch_compat.QUANTIZE_TENSOR:
        return None
    scale, zero = quantize.args[1:3]
    choose = scale.args[0] if isinstance(scale, fx.Node) and scale.target is operator.getitem else None
    if not isinstance(choose, fx.Node) or choose.target not in _CHOOSE or choose.args[0] is not quantize.args[0]:
        return None
    source = choose.args[0]
    assert isinstance(source, fx.Node)
    whole = {choose, quantize, *choose.users}
    users = {user for each in whole for user in each.users} - {node}
    same = node.args[1:6] == quantize.args[1:6] and (choose.args[1], choose.args[2], choose.args[4]) in _ENDS
    if not isinstance(zero, fx.Node) or not same or not users <= whole or choose.args[1:3] != quantize.args[3:5]:
        return None
    if not all(_is_linear(reader, user, node) for user in node.users):
        return None
    return Chain(source=source, choose=choose, nodes=(choose, *choose.users, quantize, node))


def _is_linear(reader: Reader, user: fx.Node, source: fx.Node) -> bool:
    """Tell whether a node is a linear with int8 weights that the kernel takes."""
    op = reader.table.of_node(user, reader.region)
    if op is None or op.kind != "linear" or user.args[:1] != (source,) or len(user.args) < 2:
        return False
    holder = weight_holder(reader.region, user.args[1])
    if holder is None:
        return False
    try:
        check_weight(holder, user.args[1], 0)
    except Unread:
        return False
    return True


def read_chain(reader: Reader, chain: Chain) -> View:
    """Quantize a tensor on its own range."""
    shape = reader.shapes.get(chain.source)
    if getattr(shape, "dtype", None) != torch.float32:
        raise Unread("an operand is not a float32 tensor")
    x = dense_rows(reader, reader.floats(chain.source))
    low, high, least = chain.choose.args[1:4]
    assert isinstance(low, int) and isinstance(high, int) and isinstance(least, float)
    level = x.level + x.level % 2
    grid = Grid(scale=1.0, zero=0, low=0, high=high - low)
    out = dense("u8", x.shape, tuple(range(len(x.shape))), grid, level)
    place = dense("f32", (GRID_FLOATS,), (0,), None, level)
    leading = x.shape[:-1]
    steps = [tuple(step * view.buffer.element for step in view.strides[:-1]) for view in (x, out)]
    dims, strides = collapse(leading, steps, tuple(range(len(leading))))
    spec = OwnRange(
        dims=tuple(zip(dims, *strides, strict=True)),
        length=x.shape[-1],
        most=high - low,
        least=least,
        symmetric=chain.choose.target is torch_compat.CHOOSE_QPARAMS_SYMMETRIC,
    )
    label = f"quantize on its range {'x'.join(map(str, x.shape))}"
    reader.emit(
        dynamic.quantize, spec, (pointer(x), pointer(place), pointer(out)), [x, place], out, label=label, border=False
    )
    reader.whole = True
    reader.ranges[chain.nodes[-1]] = place
    return out
