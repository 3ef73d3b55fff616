"""Ops that copy data to its place in a new tensor: cat, stack, pad, pixel shuffle."""

from __future__ import annotations

import operator
from dataclasses import replace

import numpy as np
from torch import fx, nn

from fxquant.engines.native.groups import Pads
from fxquant.engines.native.layouts import edges, origin
from fxquant.engines.native.lazy import Outside, Value, lazy
from fxquant.engines.native.ops import Pointer
from fxquant.engines.native.pixels import Border, fill_border
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_elementwise import quantize_picture
from fxquant.engines.native.read_gather import read_gather
from fxquant.engines.native.read_views import run_on
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, axes_by_stride, dense, image, is_image
from fxquant.engines.onednn.support import setting
from fxquant.engines.read_qdq import is_quantize, single_user
from fxquant.ops.table import argument


def _operands(reader: Reader, node: fx.Node) -> list[View]:
    """Tensors to be joined: on one grid, or floats."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    tensors = argument(node, op, 0)
    if not isinstance(tensors, (list, tuple)):
        raise Unread("its operands are no list")
    views = [reader.view(tensor) for tensor in tensors]
    if any(view.grid != views[0].grid for view in views):
        views = [reader.floats(tensor) for tensor in tensors]
    return views


def read_cat(reader: Reader, node: fx.Node) -> Value:
    """cat: each operand is copied to its place."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    name = str(getattr(node.target, "__name__", node.target))
    if name not in ("cat", "concat", "concatenate") and "aten.cat" not in str(node.target):
        raise Unread("it joins tensors in a way of its own")
    shape, views = reader.shape(node), _operands(reader, node)
    dim = argument(node, op, 1, 0)
    axis = (dim if dim >= 0 else dim + len(shape) + 1) - 1
    if axis < 0:
        raise Unread("it joins batches")
    after = single_user(node)
    grid = views[0].grid
    if grid is None and after is not None and is_quantize(after):
        grid = grid_of_quantize(reader, after)  # each part is rounded on its way
    out = _joined(reader, node, shape, views, grid)
    if grid is not None and after is not None and is_quantize(after) and views[0].grid is None:
        reader.taken[after] = out
    first = 0
    for view in views:
        # what has no batch (a parameter) has all axes
        size = view.shape[axis if view.batched else axis + len(view.shape) - len(shape)]
        part = replace(
            out, shape=(*shape[:axis], size, *shape[axis + 1 :]), offset=out.offset + first * out.strides[axis]
        )
        first += size
        _put(reader, view, part, last=view is views[-1])
    return out


def read_stack(reader: Reader, node: fx.Node) -> Value:
    """stack along a new axis behind the batch."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    shape, views = reader.shape(node), _operands(reader, node)
    dim = argument(node, op, 1, 0)
    axis = (dim if dim >= 0 else dim + len(shape) + 1) - 1
    if axis < 0:
        raise Unread("it makes a new batch")
    out = _joined(reader, node, shape, views, views[0].grid)
    strides = (*out.strides[:axis], *out.strides[axis + 1 :])
    for index, view in enumerate(views):
        offset = out.offset + index * out.strides[axis]
        part = replace(out, shape=(*shape[:axis], *shape[axis + 1 :]), strides=strides, offset=offset)
        _put(reader, view, part, last=view is views[-1])
    return out


def _put(reader: Reader, view: View, part: View, last: bool) -> None:
    """Copy a tensor to its place in another."""
    reader.compute(replace(lazy(view), shape=part.shape), None, part.grid, part, border=last)


def _joined(reader: Reader, node: fx.Node, shape: tuple[int, ...], views: list[View], grid: Grid | None) -> View:
    """Return a new tensor for several, in the order of the first."""
    level = max(view.level for view in views)
    level += level % 2
    pad = _border(reader, node) if grid is not None else None
    if (pad is not None and len(shape) > 2) or (len(shape) == 3 and any(is_image(view) for view in views)):
        return image("f32" if grid is None else "u8", shape, pad or (), grid, level)
    like = views[0] if len(views[0].shape) == len(shape) and views[0].batched else None
    order = axes_by_stride(like) if like is not None else tuple(range(len(shape)))
    return dense("f32" if grid is None else "u8", shape, order, grid, level)


def _border(reader: Reader, node: fx.Node) -> tuple[int, ...] | None:
    found = (reader.border(end) for end in (node, *node.users))
    return next((pad for pad in found if pad is not None), None)


def _pads(reader: Reader, node: fx.Node) -> tuple[int, ...]:
    """Return how many zeros are put around a tensor, as torch counts them."""
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    zeros = isinstance(module, (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)) and not module.value
    if module is not None and not zeros:
        raise Unread("it pads with something else than zeros")
    pads = setting(node, module, 1, "padding" if module is not None else "pad", None)
    mode = setting(node, None, 2, "mode", "constant")
    value = setting(node, None, 3, "value", None)
    if "constant_pad" in str(node.target):  # ATen: (input, pad, value)
        mode, value = "constant", 0 if mode == "constant" else mode
    constant = mode == "constant" and not value
    if not constant or not isinstance(pads, (list, tuple)) or not all(isinstance(p, int) and p >= 0 for p in pads):
        raise Unread("it pads with something else than zeros")
    return tuple(pads)


def frame_of(reader: Reader, node: fx.Node) -> Pads | None:
    """Return the zeros that a node puts around an image; None for other nodes."""
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind != "pad":
        return None
    try:
        pads = _pads(reader, node)
    except Unread:
        return None
    return (*pads[-2::-2], *pads[::-2]) if len(pads) in (4, 6) else None


def read_pad(reader: Reader, node: fx.Node) -> Value:
    """Zeros around a tensor: the border of an image, or a copy of it amid zeros; or its own elements."""
    given, shape = node.args[0], reader.shape(node)
    assert isinstance(given, fx.Node)
    try:
        pads = _pads(reader, node)
    except Unread:
        return read_gather(reader, node, reader.view(given), lambda tensor: run_on(reader, node, tensor, given))
    framed = _framed(reader, node)
    if framed is not None:
        return framed
    view = reader.view(node.args[0])
    low = [0] * len(shape)
    for place in range(len(pads) // 2):
        if place >= len(shape):
            raise Unread("it pads the batch")
        low[-1 - place] = pads[2 * place]
    out = _joined(reader, node, shape, [view], view.grid)
    size = out.buffer.bytes
    byte = np.full(64, 0 if view.grid is None else view.grid.zero, np.uint8)
    spec = Border(top=size, rows=1, inner=0, gap=0, bottom=0)
    pointers = (reader.constant(byte), Pointer(buffer=out.buffer))
    reader.emit(fill_border, spec, pointers, [view], out, label=f"zeros {'x'.join(map(str, shape))}", border=False)
    offset = out.offset + sum(step * first for step, first in zip(out.strides, low, strict=True))
    _put(reader, view, replace(out, shape=view.shape, offset=offset), last=False)
    return out


def _framed(reader: Reader, node: fx.Node) -> View | None:
    """Return an image with its border, if that is wide enough; a picture of floats is quantized first."""
    frame, source = frame_of(reader, node), node.args[0]
    assert isinstance(source, fx.Node)
    if frame is None:
        return None
    value, quantize = reader.values[source], single_user(node)
    view = value if isinstance(value, View) else None
    if isinstance(value, Outside) and quantize is not None and is_quantize(quantize):
        view = quantize_picture(reader, source, reader.take_in(value), grid_of_quantize(reader, quantize))
    if view is None or view.grid is None or 2 * len(view.shape[1:]) != len(frame) or view.buffer.image != view.shape:
        return None
    if view.offset != origin(view) or not all(map(operator.ge, view.buffer.pad, edges(frame))):
        return None
    back = sum(map(operator.mul, frame, view.strides[1:]))
    return replace(view, shape=reader.shape(node), offset=view.offset - back)


def read_pixel_shuffle(reader: Reader, node: fx.Node) -> Value:
    """Channels become pixels."""
    name, given = _spelling(reader, node), node.args[0]
    assert isinstance(given, fx.Node)
    view, shape = reader.view(given), reader.shape(node)
    if name not in ("pixel_shuffle", "pixelshuffle") or len(shape) != 3:
        return read_gather(reader, node, view, lambda tensor: run_on(reader, node, tensor, given))
    factor = shape[1] // view.shape[1]
    (_, height, width), (c, h, w) = view.shape, view.strides
    pieces = (shape[0], factor, factor, height, width)
    source = replace(view, shape=pieces, strides=(c * factor * factor, c * factor, c, h, w))
    out = _joined(reader, node, shape, [view], view.grid)
    o, row, pixel = out.strides
    target = replace(out, shape=pieces, strides=(o, row, pixel, row * factor, pixel * factor))
    _put(reader, source, target, last=True)
    return out


def _spelling(reader: Reader, node: fx.Node) -> str:
    if node.op == "call_module":
        return type(reader.region.get_submodule(str(node.target))).__name__.lower()
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]
