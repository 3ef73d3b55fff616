"""Softmax, and products of two tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

from fxquant.engines.native import matmul, rows
from fxquant.engines.native.layouts import copy_dense
from fxquant.engines.native.lazy import Value
from fxquant.engines.native.matmul import Matmul
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.rows import Rows
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import View, broadcast, collapse, dense, round_up
from fxquant.engines.onednn.support import setting
from fxquant.ops.table import argument


def dense_rows(reader: Reader, view: View) -> View:
    """Return floats whose last axis is dense."""
    if not view.shape:
        raise Unread("its operand has no axis")
    return view if view.strides[-1] == 1 and view.batched else copy_dense(reader, view)


def emit_rows(reader: Reader, spec: Rows, x: View, out: View, params: NDArray[np.generic], label: str) -> None:
    leading = x.shape[:-1]
    steps = [tuple(step * view.buffer.element for step in view.strides[:-1]) for view in (x, out)]
    dims, strides = collapse(leading, steps, tuple(range(len(leading))))
    spec = replace(spec, dims=tuple(zip(dims, *strides, strict=True)) or ((1, 0, 0),))
    reader.emit(
        rows.emit,
        spec,
        (pointer(x), reader.constant(params), pointer(out)),
        [x],
        out,
        rows=spec.dims[0][0],
        label=f"{label} {'x'.join(map(str, x.shape))}",
    )


def order_of_rows(view: View) -> tuple[int, ...]:
    """Axes as they lie in memory, the last one innermost."""
    leading = range(len(view.shape) - 1)
    return (*sorted(leading, key=lambda axis: -view.strides[axis]), len(view.shape) - 1)


def read_softmax(reader: Reader, node: fx.Node) -> Value:
    """Over any axis of a sample."""
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    axis = setting(node, module, 1, "dim", None)
    if node.kwargs.get("dtype") not in (None, torch.float32):
        raise Unread("its output is not float32")
    x = reader.floats(node.args[0])
    if module is not None and isinstance(module, nn.Softmax2d):
        axis = 1
    if not isinstance(axis, int) or axis % (len(x.shape) + 1) == 0:
        raise Unread("it runs over the batch")
    order = [*range(len(x.shape))]
    order.append(order.pop(axis % (len(x.shape) + 1) - 1))
    made = softmax(reader, dense_rows(reader, _with_axes(x, order)), 1.0)
    return _with_axes(made, [order.index(place) for place in range(len(order))])


def softmax(reader: Reader, x: View, scale: float, *, masked: bool = False) -> View:
    """Return the shares of the last axis of x * scale; with `masked`, none where all of it is -inf."""
    out = dense("f32", x.shape, order_of_rows(x), None, x.level + x.level % 2)
    spec = Rows(kind="softmax", dims=(), length=x.shape[-1], masked=masked)
    emit_rows(reader, spec, x, out, np.full(16, scale, np.float32), "softmax")
    return out


def read_matmul(reader: Reader, node: fx.Node) -> Value:
    """Return the product of two tensors of floats."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    a, b = reader.floats(argument(node, op, 0)), reader.floats(argument(node, op, 1))
    return product(reader, a, b, reader.shape(node))


def read_einsum(reader: Reader, node: fx.Node) -> Value:
    """Return a sum over one index of two tensors of floats: a product of matrices, for each of the other indices."""
    equation, *given = node.args
    left, arrow, out = str(equation).replace(" ", "").partition("->")
    names = left.split(",")
    if len(names) != 2 or len(given) != 2 or not arrow or "." in left or node.kwargs:
        raise Unread("it is no product of two matrices")
    a, b = names
    if not a[:1] == b[:1] == out[:1] or any(len({*each}) != len(each) for each in (a, b, out)):
        raise Unread("its operands have no batch in front, or an index twice")
    lead = [index for index in out[1:] if index in a and index in b]
    rows, columns, inner = {*a} - {*b}, {*b} - {*a}, ({*a} & {*b}) - {*out}
    if not len(rows) == len(columns) == len(inner) == 1 or not rows | columns <= {*out}:
        raise Unread("it is no product of two matrices")
    left_view = _in_order(reader.floats(given[0]), a[1:], [*lead, *rows, *inner])
    right_view = _in_order(reader.floats(given[1]), b[1:], [*lead, *inner, *columns])
    order = [*lead, *rows, *columns]
    shape = reader.shape(node)
    made = product(reader, left_view, right_view, tuple(shape[out[1:].index(index)] for index in order))
    return _in_order(made, "".join(order), [*out[1:]])


def _in_order(view: View, names: str, order: list[str]) -> View:
    """Return a view with its axes, which have names, in another order."""
    if len(view.shape) != len(names):
        raise Unread("its operands have other axes")
    return _with_axes(view, [names.index(name) for name in order])


def _with_axes(view: View, axes: list[int]) -> View:
    return replace(view, shape=tuple(view.shape[i] for i in axes), strides=tuple(view.strides[i] for i in axes))


def product(reader: Reader, a: View, b: View, shape: tuple[int, ...], order: tuple[int, ...] = ()) -> View:
    """a @ b, broadcast over the leading axes as torch does; `order` is that of the axes in memory."""
    if len(a.shape) < 2 or len(b.shape) < 2 or len(shape) < 2:
        raise Unread("an operand is a vector")
    (m, k), n = a.shape[-2:], b.shape[-1]
    lead = shape[:-2]
    wide_a, wide_b = broadcast(a, (*lead, m, k)), broadcast(b, (*lead, k, n))
    if wide_a is None or wide_b is None:
        raise Unread("its operands do not broadcast")
    if wide_b.strides[-1] != 1 or b.buffer.space not in ("arena", "kept"):
        copied = copy_dense(reader, b if b.batched else wide_b)
        found = broadcast(copied, (*lead, k, n))
        assert found is not None
        wide_b = found
    order = order or tuple(range(len(shape)))
    out = dense("f32", shape, order, None, max(wide_a.level, wide_b.level))
    out = replace(out, level=out.level + out.level % 2)
    steps = [tuple(4 * step for step in view.strides[:-2]) for view in (wide_a, wide_b, out)]
    dims, strides = collapse(lead, steps, tuple(range(len(lead))))
    spec = Matmul(
        batch=tuple(zip(dims, *strides, strict=True)) or ((1, 0, 0, 0),),
        rows=m,
        inner=k,
        columns=round_up(n),
        a_row=4 * wide_a.strides[-2],
        a_inner=4 * wide_a.strides[-1],
        b_inner=4 * wide_b.strides[-2],
        out_row=4 * out.strides[-2],
    )
    reader.emit(
        matmul.emit,
        spec,
        (pointer(wide_a), pointer(wide_b), pointer(out)),
        [wide_a, wide_b],
        out,
        rows=spec.batch[0][0],
        label=f"matmul {'x'.join(map(str, (*lead, m, k, n)))}",
        macs=math.prod(lead) * m * k * n,
    )
    return out
