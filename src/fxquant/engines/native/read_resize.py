"""interpolate: the weights of all pixels are what torch's op makes of pictures with one row, or column, of ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from fxquant.engines.native import resize
from fxquant.engines.native.layouts import as_image
from fxquant.engines.native.lazy import Value
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_views import run_on
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.resize import Resize, Sums, sums_of, tables
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, image
from fxquant.engines.read_qdq import is_quantize, single_user

_MOST_PROBED = 2**26  # elements that torch makes of such pictures
_MOST_TAPS = 64


def read_interpolate(reader: Reader, node: fx.Node) -> Value:
    """Any separable resize of an image, with the quantize that follows."""
    source, shape = node.args[0], reader.shape(node)
    if len(shape) != 3 or not isinstance(source, fx.Node):
        raise Unread("it is no image")
    x = as_image(reader, reader.view(source), (0, 0, 0, 0))
    y_sums, x_sums = (_probe(reader, node, source, x.shape, axis) for axis in (1, 2))
    copies = y_sums.taps == x_sums.taps == 1 and bool((y_sums.weights == 1).all() and (x_sums.weights == 1).all())
    after = single_user(node)
    grid = x.grid if copies else None
    if not copies and after is not None and is_quantize(after):
        grid = grid_of_quantize(reader, after)
    out = _output(reader, node if copies or after is None else after, shape, grid, x)
    _emit(reader, x, out, y_sums, x_sums, copies)
    if grid is not None and not copies and after is not None:
        reader.taken[after] = out
    return out


def _output(reader: Reader, node: fx.Node, shape: tuple[int, ...], grid: Grid | None, x: View) -> View:
    found = (reader.border(end) for end in (node, *node.users)) if grid is not None else iter(())
    pad = next((pad for pad in found if pad is not None), (0, 0))
    return image("f32" if grid is None else "u8", shape, pad, grid, x.level + x.level % 2)


def _probe(reader: Reader, node: fx.Node, source: fx.Node, sizes: tuple[int, ...], axis: int) -> Sums:
    """Return the sums along one axis. The other axis is one pixel wide, or as it is if the op makes nothing of that."""
    size, shape = sizes[axis], reader.shape(node)
    if size * shape[1] * shape[2] > _MOST_PROBED:
        raise Unread("it is too large to look at its weights")
    for width in (1, sizes[3 - axis]):
        ones = torch.eye(size, device="cpu")[None, :, :, None].expand(1, size, size, width)
        try:
            made = run_on(reader, node, ones if axis == 1 else ones.transpose(2, 3), source)
        except RuntimeError:
            continue
        matrix = made[0, :, :, 0] if axis == 1 else made[0, :, 0, :]
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
