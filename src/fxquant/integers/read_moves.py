"""Integers in other places: concat, reshape, permute, slice, pad, expand."""

from __future__ import annotations

from fractions import Fraction

from torch import fx

from fxquant.integers.operands import Args, moved, one_scale, shape_of
from fxquant.integers.reader import Reader
from fxquant.integers.values import Value, Whole


def concat(reader: Reader, node: fx.Node, at: Args) -> Value:
    values = [reader.whole(node, value) for value in at["tensors"]]
    axis = int(at["dim"]) % len(node.meta["val"].shape)
    first = values[0]
    if not all((value.scale, value.axis, value.zero) == (first.scale, None, first.zero) for value in values):
        values = reader.aligned(node, values)
    grids = {value.grid for value in values}
    name = reader.emit("concat", node, [value.tensor for value in values], axis=axis)
    return Whole(
        tensor=name,
        scale=values[0].scale,
        axis=None,
        zero=values[0].zero,
        bound=max(value.bound for value in values),
        grid=grids.pop() if len(grids) == 1 else None,
    )


def reshape(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self" if "self" in at else "input"])
    shape = [int(size) if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    if shape.count(-1) > 1:
        reader.refuse(node, "it moves several open sizes")
    return moved(x, reader.emit("reshape", node, [x.tensor], shape=shape))


def permute(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self"])
    rank = len(shape_of(node))
    if "dims" in at:
        axes = [axis % rank for axis in at["dims"]]
    else:
        axes = list(range(rank))
        first, second = (int(at[key]) % rank for key in ("dim0", "dim1")) if "dim0" in at else (0, 1)
        axes[first], axes[second] = axes[second], axes[first]
    return moved(x, reader.emit("permute", node, [x.tensor], axes=axes))


def slice_(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self"])
    axis = int(at["dim"]) % len(shape_of(node))
    start, stop = at["start"], at["end"]
    stop = None if stop is None or stop >= 2**31 else stop
    return moved(x, reader.emit("slice", node, [x.tensor], axis=axis, start=start, stop=stop, step=at["step"]))


def select(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self"])
    axis = int(at["dim"]) % len(shape_of(node))
    return moved(x, reader.emit("take", node, [x.tensor], index=int(at["index"]), axis=axis))


def split(reader: Reader, node: fx.Node, at: Args) -> tuple[Value, ...]:
    x = one_scale(reader, node, at["self"])
    axis = int(at["dim"]) % len(shape_of(node))
    start, parts = 0, []
    for value in node.meta["val"]:
        stop = start + int(value.shape[axis])
        name = reader.emit("slice", node, [x.tensor], axis=axis, start=start, stop=stop, step=1)
        parts.append(moved(x, name))
        start = stop
    return tuple(parts)


def pad(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self"])
    if at.get("mode", "constant") != "constant":
        reader.refuse(node, f"padding {at['mode']!r}")
    fill = Fraction(float(at.get("value") or 0.0)) / x.scale[0] + x.zero
    if fill.denominator != 1 or (x.grid is not None and not x.grid.low <= fill <= x.grid.high):
        reader.refuse(node, f"it pads with {at['value']}, which is not on the grid of its input")
    pairs = [(at["pad"][index], at["pad"][index + 1]) for index in range(0, len(at["pad"]), 2)][::-1]
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    return moved(x, reader.emit("pad", node, [x.tensor], before=before, after=after, fill=int(fill)))


def expand(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = one_scale(reader, node, at["self"])
    shape = [int(size) if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    return moved(x, reader.emit("broadcast", node, [x.tensor], shape=shape))


def same(reader: Reader, node: fx.Node, at: Args) -> Value:
    value: Value = at["self" if "self" in at else "input"]
    return value
