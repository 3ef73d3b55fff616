"""Words of a file that read as many numbers as sizes say: they are read, and stored, as words that look at these first.

Torch's batch norm reads a number of each statistic for each channel, and its resize with antialiasing the pixels that a
scale says, however many there are. Sizes may be known at a call only, so a look at the file is not enough.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fxquant.errors import InputError

_ATEN = "torch.ops.aten"
Sizes = list[int] | tuple[int, ...] | torch.Size


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what torch's op does."""
    _check_channels(input, weight, bias, running_mean, running_var)
    op = torch.ops.aten.native_batch_norm.default
    made: tuple[Tensor, Tensor, Tensor] = op(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return made


def batch_norm_without_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what torch's `_native_batch_norm_legit_no_training` does."""
    _check_channels(input, weight, bias, running_mean, running_var)
    op = torch.ops.aten._native_batch_norm_legit_no_training.default
    made: tuple[Tensor, Tensor, Tensor] = op(input, weight, bias, running_mean, running_var, momentum, eps)
    return made


def resize_bilinear(
    input: Tensor,
    output_size: Sizes,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """Return what torch's `_upsample_bilinear2d_aa` does."""
    _check_scales(input, output_size, (scales_h, scales_w))
    op = torch.ops.aten._upsample_bilinear2d_aa.default
    made: Tensor = op(input, output_size, align_corners, scales_h, scales_w)
    return made


def resize_bicubic(
    input: Tensor,
    output_size: Sizes,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """Return what torch's `_upsample_bicubic2d_aa` does."""
    _check_scales(input, output_size, (scales_h, scales_w))
    op = torch.ops.aten._upsample_bicubic2d_aa.default
    made: Tensor = op(input, output_size, align_corners, scales_h, scales_w)
    return made


SIZED_WORDS: dict[str, Callable[..., object]] = {
    "torch.native_batch_norm": native_batch_norm,
    f"{_ATEN}.native_batch_norm.default": native_batch_norm,
    "torch._native_batch_norm_legit_no_training": batch_norm_without_training,
    f"{_ATEN}._native_batch_norm_legit_no_training.default": batch_norm_without_training,
    f"{_ATEN}._upsample_bilinear2d_aa.default": resize_bilinear,
    f"{_ATEN}._upsample_bicubic2d_aa.default": resize_bicubic,
}


def sized_word(op: object, target: object) -> object:
    """Return the word that stands for one in a file."""
    own = SIZED_WORDS.get(target) if op == "call_function" and isinstance(target, str) else None
    return target if own is None else f"{__name__}.{own.__name__}"


def _check_channels(input: Tensor, *numbers: Tensor | None) -> None:
    channels = input.shape[1] if input.dim() > 1 else 1
    for each in numbers:
        if each is not None and (each.dim() != 1 or each.shape[0] != channels):
            raise InputError(f"a batch norm of {channels} channels has a tensor of the shape {tuple(each.shape)}.")


def _check_scales(input: Tensor, sizes: Sizes, scales: tuple[float | None, ...]) -> None:
    for old, new, scale in zip(input.shape[2:], sizes, scales, strict=True):
        if scale is not None and not (scale > 0 and abs(old * scale - new) <= 1):
            raise InputError(f"it resizes {tuple(input.shape)} to {tuple(sizes)}, by {scales}, which are not the same.")
