"""interpolate: the weights of all pixels are what torch's op makes of pictures with one row, or column, of ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import fx

from fxquant.engines.native import resize
from fxquant.engines.native.layouts import as_image, as_planes
from fxquant.engines.native.lazy import Value
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_views import run_on
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.resize import Resize, Sums, every, repeated, sums_of, tables
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, image
from fxquant.engines.read_qdq import is_quantize, single_user

_MOST_PROBED = 2**26  # elements that torch makes of such pictures
_MOST_TAPS = 64


def read_interpolate(reader: Reader, node: fx.Node) -> Value:
    """Any separable resize of an image, or a volume, with the quantize that follows."""
    source, shape = node.args[0], reader.shape(node)
    if len(shape) not in (3, 4) or not isinstance(source, fx.Node):
        raise Unread("it is no image")
    view = reader.view(source)
    x = as_image(reader, view) if len(shape) == 3 else as_planes(reader, view)
    sums = [_probe(reader, node, source, view.shape, axis) for axis in range(1, len(shape))]
    copies = all(map(_copies, sums))
    after = single_user(node)
    grid = x.grid if copies else None
    if not copies and after is not None and is_quantize(after):
        grid = grid_of_quantize(reader, after)
    if len(shape) > 3:
        out = _resize_volume(reader, (x, view.shape), shape, grid, sums)
    else:
        out = _output(reader, node if copies or after is None else after, shape, grid, x)
        _emit(reader, x, out, sums[0], sums[1], copies)
    if grid is not None and not copies and after is not None:
        reader.taken[after] = out
    return out


def _copies(sums: Sums) -> bool:
    return sums.taps == 1 and bool((sums.weights == 1).all())


def _resize_volume(
    reader: Reader, source: tuple[View, tuple[int, ...]], shape: tuple[int, ...], grid: Grid | None, sums: list[Sums]
) -> View:
    """Resize along the depth, where planes are rows and pixels stay; then all planes, as one image of their rows."""
    (x, (channels, planes, height, width)), (_, depth, rows, columns) = source, shape
    level, kept = x.level + x.level % 2, x.grid if _copies(sums[0]) else None
    size = height * width
    middle = image("f32" if kept is None else "u8", (channels, depth, size), (), kept, level)
    flat = replace(x, shape=(channels, planes, size), strides=(1, x.strides[1] * height, x.strides[2]))
    _emit(reader, flat, middle, sums[0], every(size), kept is not None and kept == x.grid)
    pixel = middle.strides[2]
    stacked = replace(middle, shape=(channels, depth * height, width), strides=(1, width * pixel, pixel))
    out = image("f32" if grid is None else "u8", (channels, depth * rows, columns), (), grid, level)
    copies = _copies(sums[1]) and _copies(sums[2]) and grid == kept
    _emit(reader, stacked, out, repeated(sums[1], depth, height), sums[2], copies)
    row = out.strides[1]
    return replace(out, shape=shape, strides=(1, rows * row, *out.strides[1:]))


def _output(reader: Reader, node: fx.Node, shape: tuple[int, ...], grid: Grid | None, x: View) -> View:
    found = (reader.border(end) for end in (node, *node.users)) if grid is not None else iter(())
    pad = next((pad for pad in found if pad is not None), (0, 0))
    return image("f32" if grid is None else "u8", shape, pad, grid, x.level + x.level % 2)


def _probe(reader: Reader, node: fx.Node, source: fx.Node, sizes: tuple[int, ...], axis: int) -> Sums:
    """Return the sums along one axis. The others are one pixel wide, or as they are if the op makes nothing of that."""
    size, shape = sizes[axis], reader.shape(node)
    if size * math.prod(shape[1:]) > _MOST_PROBED:
        raise Unread("it is too large to look at its weights")
    for others in ([1] * len(sizes), list(sizes)):
        ones = torch.eye(size, device="cpu").reshape(1, size, *(size if i == axis else 1 for i in range(1, len(sizes))))
        ones = ones.expand(1, size, *(size if i == axis else others[i] for i in range(1, len(sizes))))
        try:
            made = run_on(reader, node, ones, source)
        except RuntimeError:
            continue
        matrix = made[0].movedim(axis, 1).flatten(2)[:, :, 0]
        if matrix.shape == (size, shape[axis]) and (sums := sums_of(matrix.numpy())).taps <= _MOST_TAPS:
            return sums
    raise Unread("it sums too many pixels")


def _emit(reader: Reader, x: View, out: View, y_sums: Sums, x_sums: Sums, copies: bool) -> None:
    element, size = x.buffer.element, out.buffer.element
    spec = Resize(
        channels=x.shape[0],
        rows=out.shape[1],
        width=out.shape[2],
        out_row=out.strides[1] * size,
        out_pixel=out.strides[2] * size,
        taps=(y_sums.taps, x_sums.taps),
        source=x.dtype,
        out=out.dtype,
        low=0 if out.grid is None else out.grid.low,
        high=255 if out.grid is None else out.grid.high,
        nan=0 if out.grid is None else out.grid.nan,
        copies=copies,
    )
    scale, low = (1.0, 0) if x.grid is None else (x.grid.scale, x.grid.zero)
    step, zero = (1.0, 0) if out.grid is None else (out.grid.scale, out.grid.zero)
    params = np.repeat(np.array((scale / step, low, zero), np.float32), 16)
    found = tables(y_sums, x_sums, x.strides[1] * element, x.strides[2] * element)
    reader.emit(
        resize.emit,
        spec,
        (pointer(x), reader.constant(found), reader.constant(params), pointer(out)),
        [x],
        out,
        rows=out.shape[1],
        label=f"resize {'x'.join(map(str, x.shape))} -> {out.shape[1]}x{out.shape[2]}",
    )
