"""Convolutions and linears with integer weights."""

from __future__ import annotations

import math

from torch import fx

from fxquant.engines.native.arithmetic import numbers
from fxquant.engines.native.emit_weighted import Geometry, emit_conv, emit_depthwise, emit_gemm, is_depthwise
from fxquant.engines.native.gemm_shape import Taps
from fxquant.engines.native.groups import CONVS, TRANSPOSED, Group, as_tuple, grain_of, pads_of
from fxquant.engines.native.layouts import as_image, as_rows, tall, with_height
from fxquant.engines.native.lazy import Lazy, Outside
from fxquant.engines.native.ops import levels
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_float_linear import read_float_linear
from fxquant.engines.native.read_transposed import read_transposed
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, collapse, dense, drop_height, image
from fxquant.engines.read_qdq import weight_holder
from fxquant.ops.table import argument


def read_group(reader: Reader, group: Group) -> View:
    """Emit the kernel of a group."""
    source = group.node.args[0]
    if isinstance(source, fx.Node) and source in reader.ranges and group.quantize is not None:
        raise Unread("the kernel writes floats if its input is on a grid of its own")
    if takes_floats(reader, source):
        return read_float_linear(reader, group)
    x = reader.bytes(group.node.args[0], channels=True)
    grid = grid_of_quantize(reader, group.quantize) if group.quantize is not None else None
    other = None
    if group.other is not None:
        other = reader.view(group.other)
        if (other.grid is None) != (grid is None):
            other = reader.floats(group.other) if grid is None else other
            if (other.grid is None) != (grid is None):
                raise Unread("what is added is not on a grid")
    if group.kind in TRANSPOSED:
        return read_transposed(reader, group, x, grid)
    if group.kind == "linear":
        return _linear(reader, group, x, other, grid)
    return _conv(reader, group, x, other, grid)


def takes_floats(reader: Reader, node: object) -> bool:
    """Tell whether an operand is a tensor of floats, in the program or handed over."""
    value = reader.values[node] if isinstance(node, fx.Node) else None
    return isinstance(value, (Lazy, Outside)) or (isinstance(value, View) and value.grid is None)


def _linear(reader: Reader, group: Group, x: View, other: View | None, grid: Grid | None) -> View:
    assert x.grid is not None
    made = numbers(reader, group, x.grid)
    source = group.node.args[0]
    place = reader.ranges.get(source) if isinstance(source, fx.Node) else None
    x = as_rows(reader, x)
    end = group.nodes[-1]
    shape = reader.shape(end)
    out = dense("f32" if grid is None else "u8", shape, tuple(range(len(shape))), grid, _level(x, other))
    if other is not None:
        other = as_rows(reader, other)
    rows, width, steps = _rows(x, out, other)
    taps = Taps(ys=1, xs=1, y_step=0, x_step=0, length=x.shape[-1])
    emit_gemm(reader, group, made, (x, other, out), taps, (rows, width, steps), None, place=place)
    return out


def _rows(x: View, out: View, other: View | None) -> tuple[int, int, tuple[int, ...]]:
    """(rows, width, row and pixel strides of input, output and what is added) of views whose last axis is channels."""
    views = [x, out, *((other,) if other is not None else ())]
    total = math.prod(x.shape[:-1])
    pixels = []
    for view in views:
        leading = view.shape[:-1]
        dims, strides = collapse(leading, [view.strides[:-1]], tuple(range(len(leading))))
        assert len(dims) <= 1
        pixels.append(strides[0][0] if dims else 0)
    pixels += [0] * (3 - len(pixels))
    return 1, total, (0, pixels[0], 0, pixels[1], 0, pixels[2])


def _level(x: View, other: View | None) -> int:
    return levels([x, *((other,) if other is not None else ())])


def _conv(reader: Reader, group: Group, x: View, other: View | None, grid: Grid | None) -> View:
    op = reader.table.of_node(group.node, reader.region)
    assert op is not None and x.grid is not None
    made = numbers(reader, group, x.grid)
    count = CONVS[group.kind]
    stride = (1, 1, *as_tuple(argument(group.node, op, 3, 1), count))[-max(2, count) :]
    dilation = (1, 1, *as_tuple(argument(group.node, op, 5, 1), count))[-max(2, count) :]
    groups = argument(group.node, op, 6, 1)
    holder = weight_holder(reader.region, group.node.args[1])
    assert holder is not None
    pads = pads_of(group.node, op, holder.weight_shape[2:])
    end = group.nodes[-1]
    shape = reader.shape(end)
    x = as_image(reader, with_height(x), pads)
    pad = reader.border(end) if grid is not None else None
    grain = 16 if grid is None else grain_of(reader, end, shape[0])
    full = image("f32" if grid is None else "u8", tall(shape), pad or (), grid, _level(x, other), grain=grain)
    if other is not None:
        other = as_image(reader, with_height(other))
    planes = holder.weight_shape[2] if count == 3 else 1
    geometry = Geometry(stride=stride, dilation=dilation, groups=groups, pads=pads, planes=planes)
    if is_depthwise(made, geometry, grid):
        emit_depthwise(reader, group, made, (x, other, full), geometry)
    else:
        emit_conv(reader, group, made, (x, other, full), geometry)
    return drop_height(full) if len(shape) == 2 else full
