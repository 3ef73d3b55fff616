"""Attention: one kernel, or products and a softmax where that does not fit. The quantize that follows is part of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.engines.native import attention, attention_pairs
from fxquant.engines.native.attention import Attention, scratch_bytes
from fxquant.engines.native.attention_pairs import Pairs, key_words
from fxquant.engines.native.layouts import copy_dense
from fxquant.engines.native.lazy import Outside, Value, join, lazy
from fxquant.engines.native.ops import levels, pointer
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_rows import product, softmax
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.values import Grid, View, broadcast, collapse, dense
from fxquant.engines.read_qdq import is_quantize, single_user
from fxquant.ops.table import argument

_FEWEST = 8  # queries, below which the vectors of the one kernel are mostly empty
_MOST_SCRATCH = 1 << 18  # bytes of a block's scores
_MOST_MASK = 1 << 20  # numbers of a mask of our own
_MOVES = ("reshape", "permute", "squeeze", "identity")


def read_attention(reader: Reader, node: fx.Node) -> Value:
    """softmax(q k^T * scale + mask) v"""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    q, k, v = (reader.floats(argument(node, op, index)) for index in range(3))
    mask, dropout, causal = argument(node, op, 3), argument(node, op, 4, 0.0), argument(node, op, 5, False)
    if dropout or not isinstance(causal, bool):
        raise Unread("it has settings that the kernel lacks")
    scale = node.kwargs.get("scale")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)  # type: ignore[arg-type]
    if len(q.shape) < 2 or len(k.shape) != len(q.shape):
        raise Unread("its operands have other axes")
    if node.kwargs.get("enable_gqa"):
        k, v = (_for_all_heads(reader, each, q.shape[0]) for each in (k, v))
    if causal:
        added: View | None = _causal(reader, q.shape[-2], k.shape[-2])
    else:
        added = None if mask is None else _fixed_by_key(reader, mask) or _mask(reader, mask)
    return _one_kernel(reader, node, (q, k, v, added), scale) or _products(reader, node, (q, k, v, added), scale)


def _for_all_heads(reader: Reader, x: View, heads: int) -> View:
    """Return keys or values of which each head serves several of the queries, once for each."""
    if len(x.shape) != 3 or heads % x.shape[0]:
        raise Unread("its operands have other axes")
    if heads == x.shape[0]:
        return x
    several = replace(
        x, shape=(x.shape[0], heads // x.shape[0], *x.shape[1:]), strides=(x.strides[0], 0, *x.strides[1:])
    )
    copied = copy_dense(reader, several, tight=True)
    return replace(copied, shape=(heads, *x.shape[1:]), strides=copied.strides[1:])


def _causal(reader: Reader, queries: int, keys: int) -> View:
    """Return the mask that hides later keys from a query."""
    if queries * keys > _MOST_MASK:
        raise Unread("its mask takes too much memory")
    by_key = torch.full((keys, queries), -math.inf, device="cpu").tril(-1)
    return replace(reader.tensor_constant(by_key), shape=(queries, keys), strides=(1, queries))


def _fixed_by_key(reader: Reader, node: object) -> View | None:
    """Return a mask that is a parameter, laid out as the kernel reads it; None for others."""
    value = reader.values[node] if isinstance(node, fx.Node) else None
    tensor = _added(reader.constant_of(node)) if isinstance(value, Outside) and value.constant else None
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return None
    turned = reader.tensor_constant(tensor.transpose(-1, -2))
    swapped = (*range(tensor.dim() - 2), -1, -2)
    return replace(turned, shape=tuple(tensor.shape), strides=tuple(turned.strides[axis] for axis in swapped))


def _added(mask: object) -> Tensor:
    """Return a mask that is a parameter as what is added to the scores."""
    if not isinstance(mask, Tensor):
        raise Unread("its mask is not a tensor")
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -math.inf)


def _mask(reader: Reader, node: object) -> View:
    """Return what is added to the scores; nothing where a mask is true, and -inf where it is false."""
    found = reader.shapes.get(node) if isinstance(node, fx.Node) else None
    if not isinstance(found, Shape):
        raise Unread("its mask is not a tensor")
    value = reader.values[node]  # type: ignore[index]
    if isinstance(value, Outside) and value.constant:
        return reader.tensor_constant(_added(reader.constant_of(node)))
    view = reader.take_in(value, same=True) if isinstance(value, Outside) else reader.view(node)
    if found.dtype == torch.bool:
        kept = join("where", lazy(view), 0.0, view.shape, -math.inf)
        return reader.compute(kept, None)
    return view if view.grid is None else reader.floats(node)


def _products(reader: Reader, node: fx.Node, given: tuple[View, View, View, View | None], scale: float) -> View:
    q, k, v, mask = given
    swapped = replace(
        k, shape=(*k.shape[:-2], k.shape[-1], k.shape[-2]), strides=(*k.strides[:-2], k.strides[-1], k.strides[-2])
    )
    scores = product(reader, q, swapped, (*q.shape[:-1], k.shape[-2]))
    if mask is not None:
        total = join("mul", lazy(scores), scale, scores.shape)
        scores = reader.compute(join("add", total, lazy(mask), scores.shape), None)
        scale = 1.0
    shares = softmax(reader, scores, scale, masked=mask is not None)
    shape = reader.shape(node)
    # a last vector must not reach into the next head
    return product(reader, shares, v, shape, _beside(shape) if shape[-1] % 16 == 0 else ())


def _beside(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of axes that puts heads beside one another, as they are joined afterwards."""
    return (1, 0, 2) if len(shape) == 3 else tuple(range(len(shape)))


def _one_kernel(
    reader: Reader, node: fx.Node, given: tuple[View, View, View, View | None], scale: float
) -> View | None:
    """Emit the kernel; None if it does not fit."""
    shape, machine = reader.shape(node), reader.machine
    lead, queries, depth, keys = shape[:-2], shape[-2], given[0].shape[-1], given[1].shape[-2]
    sizes = ((queries, depth), (keys, depth), (keys, shape[-1]), (queries, keys))
    views = _operands(given, [(*lead, *size) for size in sizes])
    if views is None:
        return None
    each = given[3] is not None and bool(views[3].strides[-2])
    if queries < _FEWEST or (given[3] is not None and not each and views[3].strides[-1] != 1):
        return None
    if scratch_bytes(keys, max(depth, shape[-1]), machine) > _MOST_SCRATCH:
        return None
    if each and given[3] is not None:
        views[3] = _by_key(reader, given[3], (*lead, keys, queries))
    views[:3] = [view if view.strides[-1] == 1 else copy_dense(reader, view) for view in views[:3]]
    if machine.dot_words:
        views[1:3] = _as_pairs(reader, views[1], views[2])
    grid = _grid_behind(reader, node)
    level = levels(views)
    out = dense("f32" if grid is None else "u8", shape, _beside(shape), grid, level, tight=True)
    steps = [tuple(view.buffer.element * step for step in view.strides[:-2]) for view in (*views, out)]
    dims, strides = collapse(lead, steps, tuple(range(len(lead))))
    spec = Attention(
        heads=tuple(zip(dims, *strides, strict=True)),
        words=machine.dot_words,
        halves=machine.bf16,
        queries=queries,
        keys=keys,
        depth=depth,
        width=shape[-1],
        q_row=4 * views[0].strides[-2],
        k_row=4 * views[1].strides[-2],
        v_row=4 * views[2].strides[-2],
        out_row=out.buffer.element * out.strides[-2],
        masked=given[3] is not None,
        mask_row=4 * views[3].strides[-2] if each else 0,
        out=out.dtype,
        low=0 if grid is None else grid.low,
        high=255 if grid is None else grid.high,
        nan=0 if grid is None else grid.nan,
    )
    scratch = dense("f32", (spec.blocks(machine) * spec.scratch(machine) // 4,), (0,), None, level)
    factor = scale if spec.masked else scale * math.log2(math.e)
    numbers = (factor, 1.0 if grid is None else 1.0 / grid.scale, 0.0 if grid is None else grid.zero)
    params = reader.constant(np.repeat(np.array(numbers, np.float32), 16))
    reader.emit(
        attention.emit,
        spec,
        (*map(pointer, views), params, pointer(scratch), pointer(out)),
        [*views, scratch],
        out,
        rows=spec.blocks(machine),
        label=f"attention {'x'.join(map(str, (*lead, queries, keys, depth)))}",
        macs=math.prod(lead) * queries * keys * (depth + shape[-1]),
    )
    return out


def _operands(given: tuple[View, View, View, View | None], shapes: list[tuple[int, ...]]) -> list[View] | None:
    """Return the operands of all heads, the queries in the place of a missing mask; None if one does not fit."""
    views: list[View] = []
    for view, shape in zip(given, shapes, strict=True):
        wide = None if view is None else broadcast(view, shape)
        if wide is None and view is not None:
            return None
        views.append(wide or views[0])
    return views


def _by_key(reader: Reader, mask: View, shape: tuple[int, ...]) -> View:
    """Return a mask with its last axes swapped, and the queries dense."""
    turned = replace(
        mask,
        shape=(*mask.shape[:-2], mask.shape[-1], mask.shape[-2]),
        strides=(*mask.strides[:-2], mask.strides[-1], mask.strides[-2]),
    )
    found = broadcast(turned if turned.strides[-1] == 1 else copy_dense(reader, turned), shape)
    assert found is not None
    return found


def _as_pairs(reader: Reader, keys: View, values: View) -> tuple[View, View]:
    """Return keys as pairs of int16 and, where a machine multiplies those, values as pairs of bfloat16.

    A pair takes the place of a float.
    """
    level, lead, (count, depth), width = levels((keys, values)), keys.shape[:-2], keys.shape[-2:], values.shape[-1]
    with_values = reader.machine.bf16
    shapes = (*lead, count, key_words(depth)), (*lead, -(-count // 2), width)
    sizes = [math.prod(shape) for shape in shapes]
    both = dense("f32", (sum(sizes[: 1 + with_values]),), (0,), None, level)
    first, second = (replace(both, shape=shape, strides=_row_major(shape)) for shape in shapes)
    second = replace(second, offset=sizes[0]) if with_values else first
    views = (keys, values, first, second)
    steps = [tuple(4 * step for step in view.strides[:-2]) for view in views]
    dims, strides = collapse(lead, steps, tuple(range(len(lead))))
    spec = Pairs(
        heads=tuple(zip(dims, *strides, strict=True)),
        keys=count,
        depth=depth,
        width=width,
        k_row=4 * keys.strides[-2],
        v_row=4 * values.strides[-2],
        values=with_values,
    )
    label = f"pairs of keys {'x'.join(map(str, (*lead, count, depth)))}"
    pointers = tuple(map(pointer, views))
    reader.emit(attention_pairs.emit, spec, pointers, [keys, values], both, rows=spec.rows, label=label)
    return first, second if with_values else values


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _grid_behind(reader: Reader, node: fx.Node) -> Grid | None:
    """Return the grid onto which the output is put before anything else looks at it."""
    behind = single_user(node)
    while behind is not None and not is_quantize(behind):
        op = reader.table.of_node(behind, reader.region)
        if op is None or op.kind not in _MOVES or behind.all_input_nodes[:1] != [node]:
            return None
        node, behind = behind, single_user(behind)
    if behind is None:
        return None
    try:
        return grid_of_quantize(reader, behind)
    except Unread:
        return None
