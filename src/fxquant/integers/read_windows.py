"""Pools, means and resizes: sums, maxima and blends over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from torch import fx

from fxquant.integers.operands import Args, is_binary, moved, one_scale, rank_of, shape_of, spread
from fxquant.integers.reader import Reader
from fxquant.integers.scales import places_of
from fxquant.integers.values import Value, Whole


def max_pool(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = reader.whole(node, at["self"])
    rank = rank_of(node)
    kernel, padding = spread(at["kernel_size"], rank), spread(at["padding"], rank)
    stride, dilation = spread(at["stride"] or kernel, rank), spread(at["dilation"], rank)
    sizes, results = shape_of(node)[-rank:], node.meta["val"].shape[-rank:]
    reach = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    after = [
        (int(count) - 1) * step + far - int(size) - low
        for count, step, far, size, low in zip(results, stride, reach, sizes, padding, strict=True)
    ]
    name = reader.emit(
        *("max_pool", node, [x.tensor]),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding_before=padding,
        padding_after=after,
    )
    return moved(x, name)


def avg_pool(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = reader.centered(node, reader.whole(node, at["self"]))
    rank = rank_of(node)
    kernel, padding = spread(at["kernel_size"], rank), spread(at["padding"], rank)
    stride = spread(at["stride"] or kernel, rank)
    sizes, results = shape_of(node)[-rank:], node.meta["val"].shape[-rank:]
    first = len(node.meta["val"].shape) - rank
    starts, ends, counts = [], [], []
    for axis in range(rank):
        size, low = int(sizes[axis]), padding[axis]
        begin = [index * stride[axis] - low for index in range(int(results[axis]))]
        stop = [min(at_ + kernel[axis], size + low) for at_ in begin]
        inside = [(max(a, 0), min(b, size)) for a, b in zip(begin, stop, strict=True)]
        counted = list(zip(begin, stop, strict=True)) if at["count_include_pad"] else inside
        starts.append([a for a, _ in inside])
        ends.append([b for _, b in inside])
        counts.append([b - a for a, b in counted])
    override = at.get("divisor_override")
    return _average(reader, node, x, [first + axis for axis in range(rank)], starts, ends, counts, True, override)


def adaptive_avg_pool(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = reader.centered(node, reader.whole(node, at["self"]))
    rank = rank_of(node)
    sizes, results = shape_of(node)[-rank:], node.meta["val"].shape[-rank:]
    first = len(node.meta["val"].shape) - rank
    starts, ends = [], []
    for size, count in zip(map(int, sizes), map(int, results), strict=True):
        starts.append([index * size // count for index in range(count)])
        ends.append([-(-(index + 1) * size // count) for index in range(count)])
    counts = [[b - a for a, b in zip(low, high, strict=True)] for low, high in zip(starts, ends, strict=True)]
    return _average(reader, node, x, [first + axis for axis in range(rank)], starts, ends, counts, True, None)


def mean(reader: Reader, node: fx.Node, at: Args) -> Value:
    x = reader.centered(node, reader.whole(node, at["self"]))
    shape = shape_of(node)
    dims = range(len(shape)) if at.get("dim") is None else at["dim"]
    axes = sorted(axis % len(shape) for axis in dims)
    sizes = [shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        reader.refuse(node, "it averages over the batch")
    starts, ends = [[0]] * len(axes), [[int(size)] for size in sizes]
    return _average(reader, node, x, axes, starts, ends, ends, bool(at.get("keepdim", False)), None)


def _average(
    reader: Reader,
    node: fx.Node,
    x: Whole,
    axes: list[int],
    starts: list[list[int]],
    ends: list[list[int]],
    counts: list[list[int]],
    keep: bool,
    divisor: int | None,
) -> Value:
    """Sums over windows. Windows of several sizes are brought to one divisor, by gains."""
    x = _one_scale_along(reader, node, x, axes)
    common = [math.lcm(*each) if divisor is None else 1 for each in counts]
    gains = [
        [most // count if divisor is None else 1 for count in each] for most, each in zip(common, counts, strict=True)
    ]
    total = math.prod(common) if divisor is None else int(divisor)
    widest = math.prod(
        max(gain * (b - a) for gain, a, b in zip(*parts, strict=True))
        for parts in zip(gains, starts, ends, strict=True)
    )
    bound = reader.check_bound(node, x.bound * widest, is_binary(x.scale))
    name = reader.emit("sum_windows", node, [x.tensor], axes=axes, starts=starts, ends=ends, gains=gains, keep=keep)
    axis = x.axis if x.axis is None or keep else x.axis - sum(each < x.axis for each in axes)
    return Whole(tensor=name, scale=tuple(each / total for each in x.scale), axis=axis, zero=0, bound=bound)


def _one_scale_along(reader: Reader, node: fx.Node, x: Whole, axes: Sequence[int]) -> Whole:
    """Return integers that may be summed along some axes: if their scales go along one of these, on one scale."""
    return one_scale(reader, node, x) if x.axis in axes else x


def nearest(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Integers taken by their index, found in float32 as torch does."""
    x = reader.whole(node, at["input"])
    half = 0.5 if "exact" in str(node.target) else 0.0
    for axis, size, count, factor in _resized(node, at):
        step = 1.0 / factor if factor is not None else size / count
        index = [min(int(float32(each + half) * float32(step)), size - 1) for each in range(count)]
        x = moved(x, reader.emit("take", node, [x.tensor], index=index, axis=axis))
    return x


def blended(reader: Reader, node: fx.Node, at: Args) -> Value:
    """Return a linear resize: blends along each axis, exact where the weights are binary fractions."""
    x = reader.centered(node, reader.whole(node, at["input"]))
    for axis, size, count, factor in _resized(node, at):
        x = _blend(reader, node, x, axis, size, count, factor, at["align_corners"])
    return x


def _resized(node: fx.Node, at: Args) -> list[tuple[int, int, int, float | None]]:
    """(axis, old size, new size, factor if it was given) of each axis."""
    old, new = shape_of(node), node.meta["val"].shape
    factors = at.get("scale_factors")
    factors = [None] * (len(new) - 2) if at.get("output_size") or not factors else factors
    return [(axis, int(old[axis]), int(new[axis]), factors[axis - 2]) for axis in range(2, len(new))]


def float32(value: float) -> float:
    return float(np.float32(value))


def _blend(
    reader: Reader, node: fx.Node, x: Whole, axis: int, size: int, count: int, factor: float | None, corners: bool
) -> Whole:
    x = _one_scale_along(reader, node, x, (axis,))
    if corners:
        places = [Fraction(index * (size - 1), max(count - 1, 1)) for index in range(count)]
    else:
        step = Fraction(size, count) if factor is None else 1 / Fraction(factor)
        places = [max((index + Fraction(1, 2)) * step - Fraction(1, 2), Fraction(0)) for index in range(count)]
    low = [min(int(place), size - 1) for place in places]
    high = [min(index + 1, size - 1) for index in low]
    parts = [place - index for place, index in zip(places, low, strict=True)]
    binary = all(part.denominator & (part.denominator - 1) == 0 and part.denominator <= 2**8 for part in parts)
    bits = max(places_of(part) for part in parts) if binary else 11
    if not binary:
        reader.note("weights of a resize are no binary fractions: they are rounded to 11 bits")
    second = [round(part * 2**bits) for part in parts]
    weights = [[2**bits - each for each in second], second]
    name = reader.emit("blend", node, [x.tensor], axis=axis, indices=[low, high], weights=weights)
    bound = reader.check_bound(node, x.bound << bits, is_binary(x.scale))
    return Whole(tensor=name, scale=tuple(each / 2**bits for each in x.scale), axis=x.axis, zero=0, bound=bound)
