"""Ops that move elements in a way that no view does, and that is the same for every sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from fxquant.engines.native import gather
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import View, axes_by_stride

_MOST = 1 << 20  # elements that are moved one by one


def read_gather(reader: Reader, node: fx.Node, view: View, move: Callable[[Tensor], object]) -> View:
    """Emit the kernel for what `move` does to a tensor of the view's shape, with a batch in front."""
    shape = reader.shape(node)
    places = _places(view.shape, shape, move)
    if places.size > _MOST:
        raise Unread("it moves more elements one by one than a table holds")
    out = reader.output(node, shape, view.grid, view if len(view.shape) == len(shape) else None, view.level)
    order = axes_by_stride(out)
    sources = _bytes_of(np.unravel_index(places, view.shape) if view.shape else (), view, places.shape)
    targets = _bytes_of(tuple(np.indices(shape)), out, shape)
    flat = [each.transpose(order).reshape(-1) for each in (sources, targets)]
    spec, pairs = gather.table(flat[0], flat[1], view.buffer.element)
    label = f"gather {'x'.join(map(str, view.shape))} -> {'x'.join(map(str, shape))}"
    pointers = (pointer(view), reader.constant(pairs), pointer(out))
    reader.emit(gather.emit, spec, pointers, [view], out, rows=spec.count, label=label)
    return out


def _places(shape: tuple[int, ...], made: tuple[int, ...], move: Callable[[Tensor], object]) -> NDArray[np.int64]:
    """Return which element of a sample each element of the result is."""
    count = int(np.prod(shape, dtype=np.int64))
    try:
        found = move(torch.arange(2 * count, dtype=torch.float64, device="cpu").reshape(2, *shape))
    except (RuntimeError, IndexError, TypeError) as error:
        raise Unread("it moves data in a way that is not known") from error
    if not isinstance(found, Tensor) or tuple(found.shape) != (2, *made):
        raise Unread("it moves data across samples")
    first, second = found.numpy().astype(np.int64)
    if not ((first >= 0) & (first < count) & (second == first + count)).all():
        raise Unread("it moves data across samples")
    return np.asarray(first)


def _bytes_of(places: tuple[NDArray[np.int64], ...], view: View, shape: tuple[int, ...]) -> NDArray[np.int64]:
    total = np.zeros(shape, np.int64)
    for axis, step in zip(places, view.strides, strict=True):
        total += axis * (step * view.buffer.element)
    return total
