"""Sums, means, extremes, variances and norms over axes of a sample, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from fxquant.engines.native import reduction
from fxquant.engines.native.activations import Act
from fxquant.engines.native.layouts import copy_dense
from fxquant.engines.native.lazy import Lazy, Value, join, lazy
from fxquant.engines.native.ops import levels, pointer
from fxquant.engines.native.read_elementwise import settle
from fxquant.engines.native.read_rows import product
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.reduction import Kind, Reduction
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.spelled import name_of
from fxquant.engines.native.values import View, collapse, dense, read_back, stand_in
from fxquant.engines.onednn.support import setting


def read_sum(reader: Reader, node: fx.Node) -> Value:
    """sum, mean, amax, amin, var, std and norms over some axes."""
    op, name = reader.table.of_node(node, reader.region), name_of(node)
    kind = op.kind if op is not None else name
    if reader.shapes[node].dtype != torch.float32:
        raise Unread("its output is not float32")
    if kind in ("norm", "vector_norm"):
        return _norm(reader, node, "ord" if kind == "vector_norm" else "p")
    x, squared = _squared(reader, node.args[0]) if kind in ("sum", "mean") else (reader.floats(node.args[0]), False)
    axes = axes_of(x, setting(node, None, 1, "dim", None))
    count = math.prod(x.shape[axis] for axis in axes)
    if kind in ("sum", "mean"):
        found = reduce(reader, "squares" if squared else "sum", x, axes, 1.0 / count if kind == "mean" else 1.0)
    elif kind in ("var", "std"):
        found = reduce(reader, "deviations", x, axes, 1.0 / _degrees(node, count))
    else:
        found = reduce(reader, "max" if kind == "amax" else "min", x, axes)
    made = _as_node(reader, node, found, axes)
    return made if kind != "std" else settle(reader, _of(Act(kind="sqrt"), lazy(made)), node)


def axes_of(x: View, axes: object) -> tuple[int, ...]:
    """Return the axes of a sample that an argument of torch names."""
    rank = len(x.shape) + 1
    given = (axes,) if isinstance(axes, int) else tuple(axes) if isinstance(axes, (tuple, list)) else ()
    found = tuple(sorted(axis % rank - 1 for axis in given))
    if not found or found[0] < 0:
        raise Unread("it runs over the batch")
    return found


def reduce(reader: Reader, kind: Kind, x: View, axes: Sequence[int], factor: float = 1.0) -> View:
    """Return one number for each place on the other axes."""
    if kind == "sum" and x.strides[axes[-1]] != 1 and tuple(axes) == tuple(range(axes[0], axes[-1] + 1)):
        return _by_product(reader, x, axes, factor)
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    order = (*rest, *axes)
    shape = tuple(x.shape[axis] for axis in rest)
    count = math.prod(x.shape[axis] for axis in axes)
    moved = replace(x, shape=tuple(x.shape[axis] for axis in order), strides=tuple(x.strides[axis] for axis in order))
    flat = _flat(moved, (*shape, count)) or _flat(copy_dense(reader, moved, tight=True), (*shape, count))
    assert flat is not None
    out = dense("f32", shape, tuple(range(len(shape))), None, levels([flat]))
    dims, strides = collapse(
        shape,
        [tuple(4 * step for step in view.strides[: len(shape)]) for view in (flat, out)],
        tuple(range(len(shape))),
    )
    spec = Reduction(
        kind=kind, dims=tuple(zip(dims, *strides, strict=True)) or ((1, 0, 0),), length=count, factor=factor
    )
    label = f"{kind} of rows {'x'.join(map(str, (*shape, count)))}"
    reader.emit(reduction.emit, spec, (pointer(flat), pointer(out)), [flat], out, rows=spec.dims[0][0], label=label)
    return out


def _by_product(reader: Reader, x: View, axes: Sequence[int], share: float) -> View:
    """Return the sum over neighbouring axes: a product with a row of equal shares."""
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = tuple(x.shape[axis] for axis in rest)
    count, others = math.prod(x.shape[axis] for axis in axes), math.prod(shape)
    order = [0, *(1 + axis for axis in axes), *(1 + axis for axis in rest)]
    table = read_back(x, stand_in(x).permute(order).reshape(2, count, others))
    if table is None:
        table = copy_dense(reader, read_back(x, stand_in(x).permute(order)) or x, tight=True)
        table = read_back(table, stand_in(table).reshape(2, count, others))
    assert table is not None
    shares = reader.tensor_constant(torch.full((1, count), share, device="cpu"))
    made = product(reader, shares, table, (1, others))
    found = read_back(made, stand_in(made).reshape(2, *shape))
    if found is None:
        raise Unread("its result has another layout")
    return found


def mean_over(reader: Reader, node: fx.Node, x: View, axes: Sequence[int]) -> View:
    """Return the mean over some axes of a sample, with the axes that a node keeps."""
    count = math.prod(x.shape[axis] for axis in axes)
    return _as_node(reader, node, reduce(reader, "sum", x, axes, 1.0 / count), axes)


def _flat(view: View, shape: tuple[int, ...]) -> View | None:
    """Return the view with its last axes as one dense one, if they are."""
    if not view.batched:
        return None
    try:
        found = read_back(view, stand_in(view).view(2, *shape))
    except RuntimeError:
        return None
    return found if found is not None and (found.strides[-1] == 1 or shape[-1] == 1) else None


def _as_node(reader: Reader, node: fx.Node, found: View, axes: Sequence[int]) -> View:
    """Return a result with the axes that a node keeps."""
    shape = reader.shape(node)
    made = found if found.shape == shape else _kept(found, axes)
    if made.shape != shape:
        raise Unread("its result has another shape")
    return made


def _squared(reader: Reader, node: object) -> tuple[View, bool]:
    """Return a tensor, or, if what is asked for is its square, that and True."""
    value = reader.values[node] if isinstance(node, fx.Node) else None
    if isinstance(value, Lazy) and value.expr == ("mul", ("in", 0), ("in", 0)):
        (x,) = value.operands
        if x.grid is None and x.batched and x.shape == value.shape:
            return x, True
    return reader.floats(node), False


def _degrees(node: fx.Node, count: int) -> float:
    """Return what a sum of squares is divided by for a variance."""
    given = node.kwargs.get("correction", node.kwargs.get("unbiased", node.args[2] if len(node.args) > 2 else True))
    correction = 1 if given is None else given
    if not isinstance(correction, (bool, int, float)) or count <= correction:
        raise Unread("it has settings that the kernel lacks")
    return count - float(correction)


def _norm(reader: Reader, node: fx.Node, power: str) -> Value:
    order = setting(node, None, 1, power, 2)
    if order not in (2, 2.0, None, "fro") or node.kwargs.get("dtype") is not None:
        raise Unread("it is another norm than the second")
    x = reader.floats(node.args[0])
    axes = axes_of(x, setting(node, None, 2, "dim", None))
    found = _as_node(reader, node, reduce(reader, "squares", x, axes), axes)
    return settle(reader, _of(Act(kind="sqrt"), lazy(found)), node)


def read_normalize(reader: Reader, node: fx.Node) -> Value:
    """x / max(sqrt(sum(x^2)), eps)"""
    power, axis = setting(node, None, 1, "p", 2.0), setting(node, None, 2, "dim", 1)
    if power != 2 or node.kwargs.get("out") is not None:
        raise Unread("it is another norm than the second")
    x = reader.floats(node.args[0])
    axes = axes_of(x, axis)
    root = _of(Act(kind="sqrt"), lazy(_kept(reduce(reader, "squares", x, axes), axes)))
    largest = join("max", float(setting(node, None, 3, "eps", 1e-12)), root, root.shape)
    return settle(reader, join("div", lazy(x), largest, x.shape), node)


def read_rms_norm(reader: Reader, node: fx.Node) -> Value:
    """x / sqrt(mean(x^2) + eps) * weight"""
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    shape = tuple(setting(node, module, 1, "normalized_shape", ()))
    given = module.weight if module is not None else reader.constant_of(setting(node, None, 2, "weight", None))
    eps = setting(node, module, 3, "eps", None)
    x = reader.floats(node.args[0])
    axes = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    if not shape or axes[0] < 0:
        raise Unread("it runs over the batch")
    mean = lazy(_kept(reduce(reader, "squares", x, axes, 1.0 / math.prod(shape)), axes))
    moved = join("add", mean, torch.finfo(torch.float32).eps if eps is None else float(eps), mean.shape)
    made = join("mul", lazy(x), _of(Act(kind="rsqrt"), moved), x.shape)
    if isinstance(given, Tensor):
        made = join("mul", made, lazy(reader.tensor_constant(given)), x.shape)
    return settle(reader, made, node)


def is_rms_norm(reader: Reader, node: fx.Node) -> bool:
    """Tell whether a node is torch's own module for it."""
    return node.op == "call_module" and type(reader.region.get_submodule(str(node.target))) is nn.RMSNorm


def _kept(view: View, axes: Sequence[int]) -> View:
    """Return a result with axes of one element in the place of those that it was made over."""
    shape, strides = list(view.shape), list(view.strides)
    for axis in axes:
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def _of(act: Act, x: Lazy) -> Lazy:
    expr: Any = ("act", act, x.expr)
    return replace(x, expr=expr)
