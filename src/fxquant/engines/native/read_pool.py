"""Pooling and means over the pixels of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import fx, nn

from fxquant.engines.native import pool
from fxquant.engines.native.layouts import as_image, tall, with_height
from fxquant.engines.native.lazy import Lazy, Value, lazy
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.pool import Pool, Window
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_reduction import mean_over, read_sum
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, image, read_back, round_up, stand_in
from fxquant.engines.onednn.support import setting
from fxquant.engines.read_qdq import is_quantize, single_user


def _pair(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= count
    return (1, *values) if count == 1 else values


def _windows(size: int, outputs: int, kernel: int, stride: int, pad: int, apart: int) -> list[tuple[int, int, int]]:
    """(first pixel, the one after the last, pixels with padding) of each output."""
    found = []
    for index in range(outputs):
        start = index * stride - pad
        end = min(start + (kernel - 1) * apart + 1, size + pad)
        first = start if start >= 0 else start + -(start // apart) * apart
        found.append((first, min(end, size), end - start))
    return found


def _adaptive(size: int, outputs: int) -> list[tuple[int, int, int]]:
    edges = [(index * size // outputs, -(-(index + 1) * size // outputs)) for index in range(outputs)]
    return [(low, high, high - low) for low, high in edges]


def _done(reader: Reader, node: fx.Node, end: fx.Node, made: View) -> View:
    """Return the result in the shape of the node."""
    view = read_back(made, stand_in(made).reshape(2, *reader.shape(node)))
    assert view is not None
    if end is not node:
        reader.taken[end] = view
    return view


def _ends(reader: Reader, node: fx.Node, x: Grid, own_grid: bool) -> tuple[fx.Node, Grid | None]:
    """(node whose output it is, its grid): a quantize that follows is taken in."""
    after = single_user(node)
    if after is not None and is_quantize(after) and after not in reader.fused:
        grid = grid_of_quantize(reader, after)
        if own_grid or grid == x:
            return after, grid
    return node, x if not own_grid else None


def _source(reader: Reader, node: fx.Node) -> View:
    source = node.args[0] if node.args else node.kwargs.get("input")
    view = reader.bytes(source)
    if len(view.shape) not in (2, 3, 4):
        raise Unread("it pools no image")
    return as_image(reader, with_height(view))


def read_max_pool(reader: Reader, node: fx.Node) -> Value:
    """Maxima of integers; the grid stays."""
    name = _name(reader, node)
    x = _source(reader, node)
    assert x.grid is not None
    count, full = len(reader.shape(node)) - 1, tall(reader.shape(node))
    apart: tuple[int, ...] = (1,) * len(full[1:])
    if "adaptive" in name:
        axes = list(map(_adaptive, x.shape[1:], full[1:]))
    else:
        kernel, stride, pad = _settings(reader, node, count)
        module = _module(reader, node)
        apart = _pair(setting(node, module, 4, "dilation", 1), count)
        axes = list(map(_windows, x.shape[1:], full[1:], kernel, stride, pad, apart))
    end, grid = _ends(reader, node, x.grid, False)
    windows = [[(low, high, 1.0) for low, high, _ in each] for each in axes]
    made = _emit(reader, "max", x, full, (end, grid or x.grid), windows, apart)
    return _done(reader, node, end, made)


def read_avg_pool(reader: Reader, node: fx.Node) -> Value:
    """Means over windows, or over parts of the image (adaptive)."""
    source = node.args[0] if node.args else node.kwargs.get("input")
    if isinstance(source, fx.Node) and _is_float(reader.values[source]) and set(reader.shape(node)[1:]) == {1}:
        view = reader.view(source)
        if "adaptive" in _name(reader, node) and len(view.shape) in (2, 3, 4):
            return mean_over(reader, node, view, tuple(range(1, len(view.shape))))
    x = _source(reader, node)
    assert x.grid is not None
    count, full = len(reader.shape(node)) - 1, tall(reader.shape(node))
    if "adaptive" in _name(reader, node):
        axes = list(map(_adaptive, x.shape[1:], full[1:]))
        padded = False
        divisor = None
    else:
        module = _module(reader, node)
        kernel, stride, pad = _settings(reader, node, count)
        padded = bool(setting(node, module, 5, "count_include_pad", True))
        divisor = setting(node, module, 6, "divisor_override", None) if count > 1 else None
        axes = list(map(_windows, x.shape[1:], full[1:], kernel, stride, pad, (1,) * len(kernel)))
    shares: list[list[Window]] = []
    for each in axes:
        shares.append([(low, high, 1.0 / (all_ if padded else high - low)) for low, high, all_ in each])
    if divisor is not None:
        shares = [[(low, high, divisor ** (-1.0 / count)) for low, high, _ in each] for each in shares]
    end, grid = _ends(reader, node, x.grid, True)
    made = _emit(reader, "mean", x, full, (end, grid), shares, (1,) * len(shares))
    return _done(reader, node, end, made)


def read_mean(reader: Reader, node: fx.Node) -> Value:
    """Return the mean over all pixels, x.mean((2, 3)), or over other axes."""
    source = node.args[0]
    axes = setting(node, None, 1, "dim", None)
    value = reader.values[source] if isinstance(source, fx.Node) else None
    if not isinstance(value, View) or value.grid is None or not _is_of_pixels(value, axes):
        return read_sum(reader, node)
    x = as_image(reader, with_height(reader.bytes(source)))
    assert x.grid is not None
    end, grid = _ends(reader, node, x.grid, True)
    ones = (1,) * len(x.shape[1:])
    whole = [[(0, size, 1.0 / size)] for size in x.shape[1:]]
    made = _emit(reader, "mean", x, (x.shape[0], *ones), (end, grid), whole, ones)
    return _done(reader, node, end, made)


def _is_of_pixels(view: View, axes: int | Sequence[int] | None) -> bool:
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    rank = len(view.shape) + 1
    return rank in (3, 4, 5) and sorted(axis % rank for axis in axes) == list(range(2, rank))


def _is_float(value: Value) -> bool:
    return isinstance(value, Lazy) or (isinstance(value, View) and value.grid is None)


def _emit(
    reader: Reader,
    mode: Literal["max", "mean"],
    x: View,
    shape: tuple[int, ...],
    ends: tuple[fx.Node, Grid | None],
    windows: Sequence[list[Window]],
    apart: tuple[int, ...],
) -> View:
    end, grid = ends
    if any(high <= low for axis in windows for low, high, _ in axis):
        raise Unread("a window of it is empty")
    source = x.grid
    assert source is not None
    channels = x.shape[0]
    if x.strides[-1] < round_up(channels):
        x = reader.compute(lazy(x), None, x.grid, image("u8", x.shape, (), source, x.level + x.level % 2))
    pad = reader.border(end) if grid is not None else None
    level = x.level + x.level % 2
    out = image("u8" if grid is not None else "f32", shape, pad or (), grid, level)
    scale = source.scale / (grid.scale if grid is not None else 1.0)
    volume = len(shape) > 3
    out_plane, out_row, out_pixel = (0, *(step * out.buffer.element for step in out.strides[1:]))[-3:]
    spec = Pool(
        mode=mode,
        channels=round_up(channels),
        rows=shape[-2],
        width=shape[-1],
        in_row=x.strides[-2],
        in_pixel=x.strides[-1],
        out_row=out_row,
        out_pixel=out_pixel,
        planes=shape[1] if volume else 0,
        in_plane=x.strides[1] if volume else 0,
        out_plane=out_plane,
        out=out.dtype,
        apart=apart,
        narrow=max(high - low for low, high, _ in windows[-1]) <= 256,
        low=grid.low if grid is not None else 0,
        high=grid.high if grid is not None else 255,
    )
    table = pool.table(windows, scale, source.zero, 0.0 if grid is None else grid.zero)
    reader.emit(
        pool.emit,
        spec,
        (pointer(x), reader.constant(table), pointer(out)),
        [x],
        out,
        rows=math.prod(shape[1:-1]),
        label=f"{mode} pool {'x'.join(map(str, x.shape))} -> {'x'.join(map(str, shape[1:]))}",
    )
    return out


def _settings(reader: Reader, node: fx.Node, count: int) -> tuple[tuple[int, ...], ...]:
    module = _module(reader, node)
    kernel = setting(node, module, 1, "kernel_size", None)
    stride = setting(node, module, 2, "stride", None) or kernel
    pad = setting(node, module, 3, "padding", 0)
    found = [_pair(value, count) for value in (kernel, stride, pad)]
    if count == 1:
        found[2] = (0, found[2][-1])
    return tuple(found)


def _module(reader: Reader, node: fx.Node) -> nn.Module | None:
    return reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None


def _name(reader: Reader, node: fx.Node) -> str:
    module = _module(reader, node)
    name = type(module).__name__ if module is not None else str(getattr(node.target, "__name__", node.target))
    if getattr(module, "return_indices", False) or "indices" in name:
        raise Unread("its indices are used")
    return name.lower()
