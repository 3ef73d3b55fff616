"""What a bias takes of the mean that a rounded weight loses: all of it, but nothing where a zero has to stay one."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.algorithms.weighted_op import WeightedOp


def shifted(bias: Tensor, shift: Tensor, *, keep_zeros: bool) -> Tensor:
    """Return a bias that has taken its part of a shift of means."""
    made = bias + shift.to(bias.dtype)
    return (torch.where(bias == 0, bias, made) if keep_zeros else made).detach()


def takes_means(op: WeightedOp) -> bool:
    """Tell whether an op has a bias that takes the mean of every channel."""
    return getattr(op.module, "bias", None) is not None and not op.keeps_zeros
