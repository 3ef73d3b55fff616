"""How tensors lie in memory, as the float model's would: what kernels make is put in order where it can be seen.

oneDNN's convolutions write channels last, whatever they are given. A layout is what the float op would have written:
True for channels last, False for contiguous, or the strides themselves where they are neither. The functions here find
it from the layouts of the operands; in place of a layout they take a tensor that lies as the float model's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.graph import torch_compat

Layout = bool | tuple[int, ...]

_PICTURES = {4: torch.channels_last, 5: torch.channels_last_3d}


@torch_compat.on_plain_sizes
def of(known: Tensor | Layout) -> Layout:
    """Return the layout that is known, or that of a tensor."""
    if not isinstance(known, Tensor):
        return known
    strides = known.stride()
    if strides == contiguous_strides(known.shape):
        return False
    return True if known.dim() in _PICTURES and strides == _last_strides(known.shape) else strides


@torch_compat.on_plain_sizes
def after_conv(
    known: Tensor | Layout, x: Tensor, weight: Tensor, result: Tensor, geometry: torch_compat.Geometry | None = None
) -> Layout:
    """Of a convolution: channels last if the input or the weight is. torch makes lines contiguous first.

    `geometry` is needed for volumes: stride, padding, dilation, groups. Transposed ones need none.
    """
    dims = weight.dim()
    if dims not in _PICTURES:
        return False
    last = known if isinstance(known, bool) else _is_last(x.shape, _strides(known), dims)
    if not last and (weight.is_contiguous() or not _is_last(weight.shape, weight.stride(), dims)):
        return False
    if dims == 5 and geometry is not None:
        with torch_compat.unseen():
            if not torch_compat.keeps_volumes_last(x.shape, weight.shape, geometry):
                return False
    return True if result.dim() == dims else _last_strides((1, *result.shape))[1:]


@torch_compat.on_plain_sizes
def after_pool(known: Tensor | Layout, x: Tensor) -> Layout:
    """Of ops that know two layouts, of pictures and volumes."""
    if x.dim() not in _PICTURES:
        return False
    return known if isinstance(known, bool) else _is_last(x.shape, _strides(known), x.dim())


@torch_compat.on_plain_sizes
def after_cat(knowns: Sequence[Tensor | Layout], tensors: Sequence[Tensor]) -> Layout:
    """Of joined tensors: channels last if all of them are."""
    return all(after_pool(known, x) for known, x in zip(knowns, tensors, strict=True))


@torch_compat.on_plain_sizes
def after_each(knowns: Sequence[Tensor | Layout], tensors: Sequence[Tensor], result: Tensor) -> Layout:
    """Of an op that is done element by element. Numbers among the operands have no layout."""
    found = [(of(known), x) for known, x in zip(knowns, tensors, strict=True) if isinstance(x, Tensor)]
    layouts = [layout for layout, _ in found]
    first = layouts[0]
    alike = isinstance(first, bool) and layouts.count(first) == len(layouts)
    if alike and (not first or len(layouts) == 1 or any(x.shape == result.shape for _, x in found)):
        return first
    with torch_compat.unseen():
        made: Any = 0
        for layout, x in found:
            made = made + torch.empty_strided(x.shape, _wanted(x.shape, layout), device="meta")
    return of(made)


def restored(x: Tensor, layout: Layout) -> Tensor:
    """Return the tensor in the layout that the float model would have given it; itself if it lies so."""
    strides = _wanted_strides(x, layout)
    if x.stride() == strides:
        return x
    if torch_compat.is_traced():  # sizes are not to be fixed
        return x.contiguous(memory_format=_PICTURES[x.dim()] if layout is True else torch.contiguous_format)
    if isinstance(layout, tuple):
        once = x[tuple(slice(1 if step == 0 else None) for step in strides)]  # of an expanded tensor, what is in memory
        return torch.empty_strided(once.shape, strides, dtype=x.dtype, device=x.device).copy_(once).expand(x.shape)
    form = _PICTURES[x.dim()] if layout else torch.contiguous_format
    # where two layouts have the same order of elements, only the strides are other ones
    return x.contiguous(memory_format=form).as_strided(x.shape, strides)


@torch_compat.on_plain_sizes
def _wanted_strides(x: Tensor, layout: Layout) -> tuple[int, ...]:
    return _wanted(x.shape, layout)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor of this shape."""
    step, strides = 1, []
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    batch, near, *far = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (batch, far[-1] if far else 1, near, *far[:-1])


def _strides(known: Tensor | tuple[int, ...]) -> tuple[int, ...]:
    return known.stride() if isinstance(known, Tensor) else known


def _wanted(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    if isinstance(layout, tuple):
        return layout
    return _last_strides(shape) if layout else contiguous_strides(shape)


def _is_last(shape: Sequence[int], strides: Sequence[int], dims: int) -> bool:
    """Tell whether ops of this many dimensions take a tensor as channels last, as torch itself decides it."""
    if len(shape) == dims - 1:  # one sample
        shape, strides = (1, *shape), (shape[0] * strides[0], *strides)
    least = 0
    if strides[1] == 0:
        return False
    for place in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[place] == 0 or strides[place] < least or (place == 0 and least == strides[1]):
            return False
        least = strides[place] * max(shape[place], 1)
    return True
