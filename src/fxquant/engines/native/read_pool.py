"""Pooling and means over the pixels of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import fx, nn

from fxquant.engines.native import pool
from fxquant.engines.native.layouts import as_image, with_height
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
    if len(view.shape) not in (2, 3):
        raise Unread("it pools volumes")
    return as_image(reader, with_height(view), (0, 0, 0, 0))


def read_max_pool(reader: Reader, node: fx.Node) -> Value:
    """Maxima of integers; the grid stays."""
    name = _name(reader, node)
    x = _source(reader, node)
    assert x.grid is not None
    shape = reader.shape(node)
    count = len(shape) - 1
    tall = shape if count == 2 else (shape[0], 1, shape[1])
    if "adaptive" in name:
        ys, xs = _adaptive(x.shape[1], tall[1]), _adaptive(x.shape[2], tall[2])
        apart: tuple[int, ...] = (1, 1)
    else:
        kernel, stride, pad = _settings(reader, node, count)
        module = _module(reader, node)
        apart = _pair(setting(node, module, 4, "dilation", 1), count)[-2:]
        both = zip(x.shape[1:], tall[1:], kernel, stride, pad, apart, strict=True)
        ys, xs = (_windows(size, n, k, s, p, a) for size, n, k, s, p, a in both)
    end, grid = _ends(reader, node, x.grid, False)
    windows = ([(low, high, 1.0) for low, high, _ in each] for each in (ys, xs))
    made = _emit(reader, "max", x, tall, (end, grid or x.grid), tuple(windows), (apart[0], apart[1]))
    return _done(reader, node, end, made)


def read_avg_pool(reader: Reader, node: fx.Node) -> Value:
    """Means over windows, or over parts of the image (adaptive)."""
    source = node.args[0] if node.args else node.kwargs.get("input")
    if isinstance(source, fx.Node) and _is_float(reader.values[source]) and set(reader.shape(node)[1:]) == {1}:
        view = reader.view(source)
        if "adaptive" in _name(reader, node) and len(view.shape) in (2, 3):
            return mean_over(reader, node, view, tuple(range(1, len(view.shape))))
    x = _source(reader, node)
    assert x.grid is not None
    shape = reader.shape(node)
    count = len(shape) - 1
    tall = shape if count == 2 else (shape[0], 1, shape[1])
    if "adaptive" in _name(reader, node):
        ys, xs = _adaptive(x.shape[1], tall[1]), _adaptive(x.shape[2], tall[2])
        padded = False
        divisor = None
    else:
        module = _module(reader, node)
        kernel, stride, pad = _settings(reader, node, count)
        padded = bool(setting(node, module, 5, "count_include_pad", True))
        divisor = setting(node, module, 6, "divisor_override", None) if count == 2 else None
        both = zip(x.shape[1:], tall[1:], kernel, stride, pad, strict=True)
        ys, xs = (_windows(size, n, k, s, p, 1) for size, n, k, s, p in both)
    shares: list[list[Window]] = []
    for each in (ys, xs):
        shares.append([(low, high, 1.0 / (all_ if padded else high - low)) for low, high, all_ in each])
    if divisor is not None:
        shares = [[(low, high, 1.0 / math.sqrt(divisor)) for low, high, _ in each] for each in shares]
    end, grid = _ends(reader, node, x.grid, True)
    made = _emit(reader, "mean", x, tall, (end, grid), (shares[0], shares[1]), (1, 1))
    return _done(reader, node, end, made)


def read_mean(reader: Reader, node: fx.Node) -> Value:
    """Return the mean over all pixels, x.mean((2, 3)), or over other axes."""
    source = node.args[0]
    axes = setting(node, None, 1, "dim", None)
    value = reader.values[source] if isinstance(source, fx.Node) else None
    if not isinstance(value, View) or value.grid is None or not _is_of_pixels(value, axes):
        return read_sum(reader, node)
    x = as_image(reader, with_height(reader.bytes(source)), (0, 0, 0, 0))
    assert x.grid is not None
    end, grid = _ends(reader, node, x.grid, True)
    whole = tuple([(0, size, 1.0 / size)] for size in x.shape[1:])
    made = _emit(reader, "mean", x, (x.shape[0], 1, 1), (end, grid), whole, (1, 1))
    return _done(reader, node, end, made)


def _is_of_pixels(view: View, axes: int | Sequence[int] | None) -> bool:
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    rank = len(view.shape) + 1
    return rank in (3, 4) and sorted(axis % rank for axis in axes) == list(range(2, rank))


def _is_float(value: Value) -> bool:
    return isinstance(value, Lazy) or (isinstance(value, View) and value.grid is None)


def _emit(
    reader: Reader,
    mode: Literal["max", "mean"],
    x: View,
    shape: tuple[int, ...],
    ends: tuple[fx.Node, Grid | None],
    windows: tuple[list[Window], ...],
    apart: tuple[int, int],
) -> View:
    end, grid = ends
    ys, xs = windows
    if any(high <= low for low, high, _ in (*ys, *xs)):
        raise Unread("a window of it is empty")
    source = x.grid
    assert source is not None
    channels = x.shape[0]
    if x.strides[2] < round_up(channels):
        x = reader.compute(lazy(x), None, x.grid, image("u8", x.shape, (0, 0), source, x.level + x.level % 2))
    pad = reader.border(end) if grid is not None else None
    level = x.level + x.level % 2
    out = image("u8" if grid is not None else "f32", shape, pad or (0, 0), grid, level)
    scale = source.scale / (grid.scale if grid is not None else 1.0)
    spec = Pool(
        mode=mode,
        channels=round_up(channels),
        rows=shape[1],
        width=shape[2],
        in_row=x.strides[1],
        in_pixel=x.strides[2],
        out_row=out.strides[1] * out.buffer.element,
        out_pixel=out.strides[2] * out.buffer.element,
        out=out.dtype,
        apart=apart,
        narrow=max(high - low for low, high, _ in xs) <= 256,
        low=grid.low if grid is not None else 0,
        high=grid.high if grid is not None else 255,
    )
    table = pool.table(ys, xs, scale, source.zero, 0.0 if grid is None else grid.zero)
    reader.emit(
        pool.emit,
        spec,
        (pointer(x), reader.constant(table), pointer(out)),
        [x],
        out,
        rows=shape[1],
        label=f"{mode} pool {'x'.join(map(str, x.shape))} -> {shape[1]}x{shape[2]}",
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
