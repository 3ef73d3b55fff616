"""Whole numbers in NumPy: rounded division, sums over windows, products over windows.

requantize    q = clamp(round(v * multiplier * 2^-shift / divisor) + zero_point, low, high)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fxquant.integers.program import Array

MANTISSA = 24  # bits of a float32


def divide(values: Array, divisor: Array, rounding: str) -> Array:
    """values / divisor (above zero), rounded to whole numbers: half_even, half_up or floor."""
    whole = values // divisor
    if rounding == "floor":
        return whole
    twice = 2 * (values - whole * divisor)
    up = twice >= divisor
    if rounding == "half_even":
        up &= (twice > divisor) | (whole & 1 == 1)
    rounded: Array = whole + up
    return rounded


def requantize(values: Array, multiplier: Array, shift: Array, divisor: int, rounding: str) -> Array:
    """values * multiplier * 2^-shift / divisor, rounded once. A shift below zero goes to the left."""
    zero = np.zeros_like(shift)
    products = values * multiplier << np.maximum(-shift, zero)
    return divide(products, np.int64(divisor) << np.maximum(shift, zero), rounding)


def keep_mantissa(values: Array) -> Array:
    """Return the nearest number of 24 significant bits, ties to even: what float32 keeps of a product."""
    size = np.abs(values)
    excess = np.zeros_like(size)
    for bits in (32, 16, 8, 4, 2, 1):  # how many bits there are above 24, as a binary search
        longer = (size >> (excess + bits)) >= 1 << (MANTISSA - 1)
        excess = excess + np.where(longer, bits, 0)
    return divide(values, np.int64(1) << excess, "half_even") << excess


def divide_mantissa(values: Array, divisor: int) -> Array:
    """Return quotients of 24 significant bits, ties to even, as float32 does; those below 2^25 are rounded down."""
    whole = values // divisor
    rest = values != whole * divisor
    return keep_mantissa(2 * whole + rest) >> 1


def sum_windows(values: Array, axes: Sequence[int], starts: Sequence[Array], ends: Sequence[Array]) -> Array:
    """Sums over [start, end) along each axis, one window for each index of the result."""
    for axis, first, last in zip(axes, starts, ends, strict=True):
        total = np.cumsum(values, axis=axis)
        total = np.concatenate([np.zeros_like(np.take(total, [0], axis=axis)), total], axis=axis)
        values = np.take(total, last, axis=axis) - np.take(total, first, axis=axis)
    return values


def pad(values: Array, before: Sequence[int], after: Sequence[int], fill: int) -> Array:
    """Return the last axes made longer, or shorter where a number is below zero."""
    lead = values.ndim - len(before)
    widths = [(0, 0)] * lead + [(max(low, 0), max(high, 0)) for low, high in zip(before, after, strict=True)]
    padded = np.pad(values, widths, constant_values=fill)
    ends = zip(before, after, padded.shape[lead:], strict=True)
    cut: tuple[Any, ...] = (..., *(slice(max(-low, 0), size - max(-high, 0)) for low, high, size in ends))
    found: Array = padded[cut]
    return found


def windows(values: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """Views of the windows over the last axes: (..., *positions, *kernel)."""
    rank = len(kernel)
    reach = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    views = sliding_window_view(values, reach, axis=tuple(range(values.ndim - rank, values.ndim)))
    places: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*stride, *dilation)))
    found: Array = views[places]
    return found


def convolve(values: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """Sums of products of (N, C, ...) with (O, C / groups, ...). The padding is there already."""
    rank = weight.ndim - 2
    views = windows(values, weight.shape[2:], stride, dilation)  # N, C, positions, kernel
    batch, positions = values.shape[0], views.shape[2 : 2 + rank]
    depth, outputs = weight.shape[1], weight.shape[0] // groups
    parts = []
    for group in range(groups):
        view = views[:, group * depth : (group + 1) * depth]
        rows = np.moveaxis(view, 1, 1 + rank).reshape(-1, weight[0].size)
        columns = weight[group * outputs : (group + 1) * outputs].reshape(outputs, -1)
        parts.append((rows @ columns.T).reshape(batch, *positions, outputs))
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def spread(values: Array, stride: Sequence[int]) -> Array:
    """Zeros between neighbours along the last axes: the input of a transposed convolution."""
    rank = len(stride)
    lead, sizes = values.shape[:-rank], values.shape[-rank:]
    wide = np.zeros((*lead, *((size - 1) * step + 1 for size, step in zip(sizes, stride, strict=True))), values.dtype)
    places: tuple[Any, ...] = (..., *(slice(None, None, step) for step in stride))
    wide[places] = values
    return wide


def transpose_weight(weight: Array, groups: int) -> Array:
    """(I, O / groups, ...) of a transposed convolution as (O, I / groups, ...) of the one that does the same."""
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    split = weight.reshape(groups, inputs, outputs, *weight.shape[2:])
    flipped = np.flip(split, axis=tuple(range(3, split.ndim)))
    return np.ascontiguousarray(np.swapaxes(flipped, 1, 2)).reshape(groups * outputs, inputs, *weight.shape[2:])
