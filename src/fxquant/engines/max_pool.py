"""Max pooling of integers as elementwise maxima of strided views, along one dimension after the other.

torch has a pooling kernel for its quantized tensors only, and a run that is replayed copies into those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def max_pool2d(
    q: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """`F.max_pool2d`; None if it asks for indices, or if no tap of the kernel is inside for all outputs."""
    if return_indices:
        return None
    settings = [_pair(setting) for setting in (kernel_size, stride or kernel_size, padding, dilation)]
    for axis, (kernel, step, pad, dilate) in zip((-2, -1), zip(*settings, strict=True), strict=True):
        pooled = _pool(q, axis, kernel, step, pad, dilate, ceil_mode)
        if pooled is None:
            return None
        q = pooled
    return q


def _pair(setting: Any) -> tuple[int, int]:
    first, *rest = (setting,) if isinstance(setting, int) else setting
    return first, rest[0] if rest else first


def _pool(
    q: Tensor, axis: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Tensor | None:
    size = q.shape[axis]
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    outputs = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:
        outputs -= 1  # a window must not start in the padding at the end

    def view(first: int, last: int, shift: int) -> Tensor:
        """The inputs that one tap sees for outputs first to last."""
        taken = q.narrow(axis, first * stride + shift, (last - first) * stride + 1)
        return taken.movedim(axis, -1)[..., ::stride].movedim(-1, axis)

    parts = []
    for tap in range(kernel):
        shift = tap * dilation - padding
        first, last = max(0, -(shift // stride)), min(outputs - 1, (size - 1 - shift) // stride)
        if first <= last:
            parts.append((last - first + 1 < outputs, first, last, shift))
    parts.sort()  # those that are inside for all outputs come first
    whole = [view(first, last, shift) for is_part, first, last, shift in parts if not is_part]
    if not whole:
        return None
    made = torch.maximum(*whole[:2]) if len(whole) > 1 else whole[0].clone()
    for each in whole[2:]:
        torch.maximum(made, each, out=made)
    for is_part, first, last, shift in parts:
        if is_part:
            inside = made.narrow(axis, first, last - first + 1)
            torch.maximum(inside, view(first, last, shift), out=inside)
    return made
