"""Ops that only move data: views where strides allow it, copies where not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.core.ops import argument
from fxquant.engines.native.layouts import copy_dense
from fxquant.engines.native.lazy import Outside, Value, lazy
from fxquant.engines.native.reader import Reader, is_image
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.values import View, broadcast, dense, image, read_back, stand_in


def _run(reader: Reader, node: fx.Node, tensor: Tensor, source: fx.Node) -> Any:
    """What the node's function returns for a tensor in the place of its operand."""

    def swap(operand: fx.Node) -> Any:
        if operand is source:
            return tensor
        shape = reader.shapes.get(operand)
        if isinstance(shape, Shape):
            dims = (2, *shape.dims) if shape.batched else shape.dims
            return torch.empty(dims, dtype=shape.dtype, device="meta")
        return reader.sizes[operand]

    args, kwargs = fx.node.map_arg(node.args, swap), fx.node.map_arg(node.kwargs, swap)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    function: Callable[..., Any] = (
        reader.region.get_submodule(str(node.target)) if node.op == "call_module" else node.target  # type: ignore[assignment]
    )
    return function(*args, **kwargs)


def read_view(reader: Reader, node: fx.Node) -> Value:
    """reshape, permute, slice, squeeze, expand, and pieces of a split."""
    source = node.args[0]
    if not isinstance(source, fx.Node):
        raise Unread("its operand is not a tensor")
    if node.target is operator.getitem and source in reader.splits:
        pieces = reader.splits[source]
        index = node.args[1]
        if not isinstance(index, int):
            raise Unread("it takes several pieces")
        return pieces[index]
    value = reader.values[source]
    if isinstance(value, Outside):
        return _expand_constant(reader, node, value)
    if len(node.all_input_nodes) > 1 and any(isinstance(reader.shapes.get(o), Shape) for o in node.all_input_nodes[1:]):
        raise Unread("it takes places from a tensor")
    view = reader.view(source)
    shape = reader.shape(node)
    found = _as_view(reader, node, view, source)
    if found is None:
        found = _as_view(reader, node, copy_dense(reader, view), source)
    if found is None or found.shape != shape:
        raise Unread("it moves data in a way that no view does")
    return found


def _expand_constant(reader: Reader, node: fx.Node, value: Outside) -> View:
    """A parameter, once for every sample."""
    op = reader.table.of_node(node, reader.region)
    if not value.constant or op is None or op.kind != "expand" or "repeat" in str(node.target):
        raise Unread("its operand is not a tensor of the program")
    shape = reader.shape(node)
    found = broadcast(reader.take_in(value), shape)
    if found is None:
        raise Unread("its operand is not a tensor of the program")
    return found


def _as_view(reader: Reader, node: fx.Node, view: View, source: fx.Node) -> View | None:
    try:
        return read_back(view, _run(reader, node, stand_in(view), source))
    except RuntimeError:  # torch's view ops refuse strides that do not fit
        return None


def read_split(reader: Reader, node: fx.Node) -> Value:
    """split, chunk, unbind: views, of which getitem nodes take one each."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or isinstance(reader.values[source], Outside):
        raise Unread("its operand is not a tensor of the program")
    if any(user.target is not operator.getitem for user in node.users):
        raise Unread("its pieces are used as a list")
    view = reader.view(source)
    found = [read_back(view, piece) for piece in _run(reader, node, stand_in(view), source)]
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) != len(found):
        raise Unread("it splits the batch")
    reader.splits[node] = pieces
    return view


def read_cat(reader: Reader, node: fx.Node) -> Value:
    """cat and stack: each operand is copied to its place, unless a producer can write there (see plan.py)."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    tensors, dim = argument(node, op, 0), argument(node, op, 1, 0)
    name = str(getattr(node.target, "__name__", node.target))
    if op.kind != "cat" or (name not in ("cat", "concat", "concatenate") and "aten.cat" not in str(node.target)):
        raise Unread("it joins tensors along a new axis")
    shape = reader.shape(node)
    axis = dim if dim >= 0 else dim + len(shape) + 1
    if axis == 0 or not isinstance(tensors, (list, tuple)):
        raise Unread("it joins batches")
    views = [reader.view(tensor) for tensor in tensors]
    grid = views[0].grid
    if any(view.grid != grid for view in views):
        views = [
            view if view.grid is None else reader.floats(tensor) for view, tensor in zip(views, tensors, strict=True)
        ]
        grid = None
    level = max(view.level for view in views)
    out = _joined(reader, node, shape, grid, views, level + level % 2)
    first = 0
    for place, view in enumerate(views):
        size = view.shape[axis - 1]
        part = replace(
            out,
            shape=(*shape[: axis - 1], size, *shape[axis:]),
            offset=out.offset + first * out.strides[axis - 1],
        )
        source = lazy(view) if view.batched else replace(lazy(view), shape=part.shape)
        reader.compute(source, None, grid, part, border=place == len(views) - 1)
        first += size
    return out


def _joined(reader: Reader, node: fx.Node, shape: tuple[int, ...], grid: Any, views: list[View], level: int) -> View:
    pads = [reader.border(end) for end in (node, *node.users)] if grid is not None else []
    pad = next((found for found in pads if found is not None), None)
    if len(shape) == 3 and (pad is not None or any(is_image(view) for view in views)):
        return image("f32" if grid is None else "u8", shape, pad or (0, 0), grid, level)
    return dense("f32" if grid is None else "u8", shape, tuple(range(len(shape))), grid, level)
