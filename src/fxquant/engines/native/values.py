"""Tensors of a native program: areas of memory, and strided views of them.

Shapes and strides are those of one sample: the program loops over the batch. What torch's view ops do to a view is
found by running them on a tensor without memory that has its strides, and a batch stride that nothing else can have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

DType = Literal["u8", "f32"]
_BATCH = 2  # of the tensors that stand for views
_APART = 1 << 44  # their batch stride


@dataclass(kw_only=True, slots=True, eq=False)
class Buffer:
    """An area of memory for one sample.

    `space` says where: in the arena (reused as soon as its last reader is done), among the constants, or in a tensor
    that is handed over (`slot`). Images and volumes have a border of `pad` pixels ([z,] y, x), which holds the zero
    point.
    """

    dtype: DType
    size: int  # elements
    space: Literal["arena", "kept", "constant", "slot"] = "arena"
    offset: int = 0  # bytes
    slot: int = -1
    same: bool = False  # for all samples: a slot without a batch
    pad: tuple[int, ...] = ()
    image: tuple[int, ...] = ()  # shape of the view that the border surrounds
    levels: set[int] = field(default_factory=set)  # of the segments that use it

    @property
    def element(self) -> int:
        return 4 if self.dtype == "f32" else 1

    @property
    def bytes(self) -> int:
        return self.size * self.element

    @property
    def step(self) -> int:
        """Bytes from one sample to the next, in a slot."""
        return 0 if self.same else self.bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The grid of a u8 tensor. `channels` are scales of their own for the channels, the first axis of a sample.

    `nan` is what NaN becomes: 0, or more where the grid was signed.
    """

    scale: float
    zero: int
    low: int = 0
    high: int = 255
    channels: tuple[float, ...] = ()
    nan: int = 0


TRUTH = Grid(scale=1.0, zero=0, high=1)  # of tensors of true and false, a byte each


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A tensor in a buffer: shape, strides and offset in elements, without the batch, which not all have."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    grid: Grid | None = None  # None for floats
    level: int = 0  # of the segment that makes it

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def batched(self) -> bool:
        return self.buffer.space != "constant" and not self.buffer.same

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def stand_in(view: View) -> Tensor:
    """Return a tensor without memory that has the view's strides, and a batch if it has one."""
    shape, strides = view.shape, view.strides
    if view.batched:
        shape, strides = (_BATCH, *shape), (_APART, *strides)
    return torch.empty(0, device="meta").as_strided(shape, strides, view.offset)


def read_back(view: View, tensor: object) -> View | None:
    """Return the view that a tensor stands for, made of `view`'s stand-in by view ops.

    None if it is none of one sample.
    """
    if not isinstance(tensor, Tensor):
        return None
    shape, strides = tuple(tensor.shape), tensor.stride()
    if view.batched:
        if not shape or shape[0] != _BATCH or strides[0] != _APART:
            return None
        shape, strides = shape[1:], strides[1:]
    strides = tuple(stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True))
    if any(stride >= _APART for stride in strides) or tensor.storage_offset() >= _APART:
        return None
    return replace(view, shape=shape, strides=strides, offset=int(tensor.storage_offset()))


def batch_axis(tensor: Tensor) -> int | None:
    """Tell where a stand-in has its batch, if it has one."""
    found = [axis for axis, stride in enumerate(tensor.stride()) if stride == _APART and tensor.shape[axis] == _BATCH]
    return found[0] if len(found) == 1 else None


def broadcast(view: View, shape: tuple[int, ...]) -> View | None:
    """Return the view with the shape of one sample of a batch, as torch broadcasts it; None if it does not."""
    full = (_BATCH, *shape)
    try:
        tensor = stand_in(view).broadcast_to(full)
    except RuntimeError:
        return None
    strides = tensor.stride()
    if strides[0] not in (0, _APART) or any(stride >= _APART for stride in strides[1:]):
        return None
    return replace(view, shape=shape, strides=strides[1:], offset=int(tensor.storage_offset()))


def round_up(value: int, to: int = 16) -> int:
    return -(-value // to) * to


def dense(
    dtype: DType, shape: tuple[int, ...], dims: tuple[int, ...], grid: Grid | None, level: int, tight: bool = False
) -> View:
    """Return a new buffer with a view of it. `dims` are the axes from the outermost to the innermost.

    The innermost is rounded up to a multiple of 16, unless there is to be no gap (`tight`).
    """
    strides = [0] * len(shape)
    size = 1
    for place, axis in enumerate(reversed(dims)):
        strides[axis] = size
        size *= round_up(shape[axis]) if place == 0 and not tight else shape[axis]
    buffer = Buffer(dtype=dtype, size=max(size, 16))
    return View(buffer=buffer, shape=shape, strides=tuple(strides), grid=grid, level=level)


def image(
    dtype: DType,
    shape: tuple[int, ...],
    pad: tuple[int, ...],
    grid: Grid | None,
    level: int,
    tight: bool = False,
    grain: int = 16,
) -> View:
    """Return a new image (channels, height, width), or volume (depth before height), with channels last and a border.

    `tight` has no gap between pixels; else each has a multiple of `grain` elements.
    """
    channels, *sizes = shape
    pad = pad or (0,) * len(sizes)
    steps = [channels if tight else round_up(channels, grain)]
    for size, edge in zip(sizes[::-1], pad[::-1], strict=True):
        steps.append((size + 2 * edge) * steps[-1])
    size, *strides = steps[::-1]
    buffer = Buffer(dtype=dtype, size=size, pad=pad, image=shape)
    offset = sum(edge * stride for edge, stride in zip(pad, strides, strict=True))
    return View(buffer=buffer, shape=shape, strides=(1, *strides), offset=offset, grid=grid, level=level)


def axes_by_stride(view: View) -> tuple[int, ...]:
    """Axes from the largest stride to the smallest; broadcast ones first, equal ones in order."""
    return tuple(sorted(range(len(view.shape)), key=lambda axis: (view.strides[axis] != 0, -view.strides[axis], axis)))


def collapse(
    shape: tuple[int, ...], strides: list[tuple[int, ...]], order: tuple[int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Dims in an order, with neighbours made one where all strides allow it; dims of one element are left out."""
    dims: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for axis in order:
        size = shape[axis]
        if size == 1:
            continue
        steps = [each[axis] for each in strides]
        if dims and all(kept[-1] == step * size for kept, step in zip(found, steps, strict=True)):
            dims[-1] *= size
            for kept, step in zip(found, steps, strict=True):
                kept[-1] = step
        else:
            dims.append(size)
            for kept, step in zip(found, steps, strict=True):
                kept.append(step)
    return tuple(dims), [tuple(kept) for kept in found]


def is_image(view: View) -> bool:
    """Tell whether the channels (the first axis of a sample) are the innermost in memory."""
    return len(view.shape) == 3 and view.strides[0] == 1 and view.shape[0] > 1


def drop_height(view: View) -> View:
    """Return one row of an image as (channels, width)."""
    (channels, _, width), (c, _, w) = view.shape, view.strides
    return View(
        buffer=view.buffer,
        shape=(channels, width),
        strides=(c, w),
        offset=view.offset,
        grid=view.grid,
        level=view.level,
    )
