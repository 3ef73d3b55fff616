"""Tensors in the layouts that kernels read: rows of channels, and images with a border."""

from __future__ import annotations

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
    return shape if len(shape) == 3 else (shape[0], 1, shape[1])


def with_height(view: View) -> View:
    """Return a view of (channels, width) as one row of an image."""
    if len(view.shape) == 3:
        return view
    (channels, width), (c, w) = view.shape, view.strides
    row = view.buffer.size if not view.buffer.image else w * (width + 2 * view.buffer.pad[1])
    return replace(view, shape=(channels, 1, width), strides=(c, row, w))


def as_image(reader: Reader, view: View, pads: Pads) -> View:
    """Return the view with the channels innermost, in the program's memory, with a border as wide as the padding."""
    buffer = view.buffer
    inner = view.strides[0] == 1 or view.shape[0] == 1
    wanted = (max(pads[0], pads[2]), max(pads[1], pads[3]))
    if inner and buffer.space in ("arena", "kept") and view.strides[2] >= view.shape[0]:
        if wanted == (0, 0):
            return view
        origin = buffer.pad[0] * view.strides[1] + buffer.pad[1] * view.strides[2]
        whole = buffer.image == view.shape and view.offset == origin
        if whole and buffer.pad[0] >= wanted[0] and buffer.pad[1] >= wanted[1]:
            return view
    out = image(view.dtype, view.shape, wanted, view.grid, view.level + view.level % 2)
    return reader.compute(lazy(view), None, view.grid, out)
