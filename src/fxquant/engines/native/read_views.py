"""Ops that only move data: views where strides allow it, copies where not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.engines.native.layouts import copy_dense
from fxquant.engines.native.lazy import Moved, Outside, Value
from fxquant.engines.native.read_gather import read_gather
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.values import View, batch_axis, broadcast, read_back, stand_in


def run_on(reader: Reader, node: fx.Node, tensor: Tensor, source: fx.Node) -> Any:
    """Return what the node's function returns for a tensor in the place of its operand."""

    def swap(operand: fx.Node) -> Any:
        if operand is source:
            return tensor
        shape = reader.shapes.get(operand)
        if reader.is_fixed(operand):
            return reader.constant_of(operand)
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
    shape = reader.shapes.get(source)
    whole = isinstance(shape, Shape) and not shape.batched
    if isinstance(value, Outside) and (value.constant or whole or source.op != "placeholder"):
        return _expand_constant(reader, node, value)
    others = [
        each for each in node.all_input_nodes if each is not source and isinstance(reader.shapes.get(each), Shape)
    ]
    if not all(map(reader.is_fixed, others)):
        raise Unread("it takes places from a tensor")
    found = _as_view(reader, node, _stands_for(reader, value, source), source)
    if found is None and not isinstance(value, Moved):
        copied = copy_dense(reader, reader.view(source), tight=True)
        found = _as_view(reader, node, (copied, stand_in(copied)), source)
    if found is not None:
        return found
    if isinstance(value, Moved):
        raise Unread("it moves data in a way that no view does")
    return read_gather(reader, node, reader.view(source), lambda tensor: run_on(reader, node, tensor, source))


def _stands_for(reader: Reader, value: Value, source: fx.Node) -> tuple[View, Tensor]:
    """Return a view, and the tensor without memory that an op gets for it."""
    if isinstance(value, Moved):
        return value.view, stand_in(value.view).movedim(0, value.axis)
    view = reader.view(source)
    return view, stand_in(view)


def _value(view: View, tensor: object) -> View | Moved | None:
    """Return what a tensor stands for that was made of a view's stand-in."""
    found = read_back(view, tensor)
    if found is None and isinstance(tensor, Tensor) and (axis := batch_axis(tensor)) is not None:
        moved = read_back(view, tensor.movedim(axis, 0))
        return Moved(view=moved, axis=axis) if moved is not None else None
    return found


def _expand_constant(reader: Reader, node: fx.Node, value: Outside) -> View:
    """Return a parameter, once for every sample."""
    op = reader.table.of_node(node, reader.region)
    if not value.constant or op is None or op.kind != "expand" or "repeat" in str(node.target):
        raise Unread("its operand is not a tensor of the program")
    shape = reader.shape(node)
    found = broadcast(reader.take_in(value), shape)
    if found is None:
        raise Unread("its operand is not a tensor of the program")
    return found


def _as_view(reader: Reader, node: fx.Node, given: tuple[View, Tensor], source: fx.Node) -> View | Moved | None:
    view, tensor = given
    try:
        return _value(view, run_on(reader, node, tensor, source))
    except RuntimeError:  # torch's view ops refuse strides that do not fit
        return None


def read_split(reader: Reader, node: fx.Node) -> Value:
    """split, chunk, unbind: views, of which getitem nodes take one each."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or isinstance(reader.values[source], Outside):
        raise Unread("its operand is not a tensor of the program")
    if any(user.target is not operator.getitem for user in node.users):
        raise Unread("its pieces are used as a list")
    view, tensor = _stands_for(reader, reader.values[source], source)
    found = [_value(view, piece) for piece in run_on(reader, node, tensor, source)]
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) != len(found):
        raise Unread("it splits the batch")
    reader.splits[node] = pieces
    return reader.values[source]
