"""Tensors in the layouts that kernels read: rows of channels, and images with a border."""

from __future__ import annotations

import operator
from dataclasses import replace

from fxquant.engines.native.groups import Pads
from fxquant.engines.native.lazy import lazy
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.values import View, collapse, dense, image


def as_rows(reader: Reader, view: View) -> View:
    """Return the view with its last axis dense and the others as at most two strides."""
    leading = view.shape[:-1]
    dims, _ = collapse(leading, [view.strides[:-1]], tuple(range(len(leading))))
    if len(dims) <= 1 and view.strides[-1] in (0, 1) and (view.shape[-1] == 1 or view.strides[-1] == 1):
        return view if view.buffer.space in ("arena", "kept") else copy_dense(reader, view)
    return copy_dense(reader, view)


def copy_dense(reader: Reader, view: View, tight: bool = False) -> View:
    """Return the same values in a new buffer, in the natural order; `tight` is as in `dense`."""
    out = dense(view.dtype, view.shape, tuple(range(len(view.shape))), view.grid, view.level, tight)
    return reader.compute(lazy(view), None, view.grid, replace(out, level=view.level + view.level % 2))


def tall(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 2 else (shape[0], 1, shape[1])


def with_height(view: View) -> View:
    """Return a view of (channels, width) as one row of an image."""
    if len(view.shape) > 2:
        return view
    (channels, width), (c, w) = view.shape, view.strides
    row = view.buffer.size if not view.buffer.image else w * (width + 2 * view.buffer.pad[1])
    return replace(view, shape=(channels, 1, width), strides=(c, row, w))


def in_planes(view: View) -> View:
    """Return a volume without a border as an image of all its planes' rows."""
    (channels, planes, height, width), (_, plane, row, pixel) = view.shape, view.strides
    assert plane == row * height
    return replace(view, shape=(channels, planes * height, width), strides=(1, row, pixel))


def as_planes(reader: Reader, view: View) -> View:
    """Return an image, or a volume as an image of all its planes' rows, with the channels innermost."""
    view = as_image(reader, with_height(view))
    if len(view.shape) == 3:
        return view
    if view.strides[1] != view.strides[2] * view.shape[2]:
        out = image(view.dtype, view.shape, (), view.grid, view.level + view.level % 2)
        view = reader.compute(lazy(view), None, view.grid, out)
    return in_planes(view)


def edges(pads: Pads) -> tuple[int, ...]:
    """Return how wide a border has to be that is the same on both sides."""
    count = len(pads) // 2
    return tuple(map(max, pads[:count], pads[count:]))


def origin(view: View) -> int:
    """Return where an image begins in a buffer of its own."""
    return sum(map(operator.mul, view.buffer.pad, view.strides[1:]))


def as_image(reader: Reader, view: View, pads: Pads = ()) -> View:
    """Return the view with the channels innermost, in the program's memory, with a border as wide as the padding."""
    buffer = view.buffer
    inner = view.strides[0] == 1 or view.shape[0] == 1
    wanted = edges(pads)
    if inner and buffer.space in ("arena", "kept") and view.strides[-1] >= view.shape[0]:
        if not any(wanted):
            return view
        if buffer.image == view.shape and view.offset == origin(view) and all(map(operator.ge, buffer.pad, wanted)):
            return view
    out = image(view.dtype, view.shape, wanted, view.grid, view.level + view.level % 2)
    return reader.compute(lazy(view), None, view.grid, out)
