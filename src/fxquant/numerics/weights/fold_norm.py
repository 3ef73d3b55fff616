"""Fold a batch norm into the op before it: the one place where that is computed, after training and without.

    w' = w * g        b' = (b - mean) * g + beta        with g = gamma / sqrt(var + eps), per output channel

In float64, and then rounded to the dtype of the weight once. Gradients pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm


FROZEN = "_fxquant_frozen"  # on a norm that keeps to its running statistics in train mode


def uses_batch_statistics(norm: BatchNorm) -> bool:
    """Tell whether a call now normalizes by the batch."""
    return norm.training and FROZEN not in norm.__dict__


def fold_norm(op: nn.Module, weight: Tensor, bias: Tensor | None, norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """(w', b') for the weight and bias of a conv, transposed conv or linear."""
    gain = norm_gain(norm)
    return scale_channels(op, weight, gain), fold_bias(bias, norm, gain).to(weight.dtype)


def norm_gain(norm: BatchNorm) -> Tensor:
    """g, from the running statistics."""
    assert norm.running_var is not None
    gain = torch.rsqrt(_wide(norm.running_var) + norm.eps)
    return gain if norm.weight is None else gain * _wide(norm.weight)


def fold_bias(bias: Tensor | None, norm: BatchNorm, gain: Tensor) -> Tensor:
    """b', not rounded yet."""
    assert norm.running_mean is not None
    mean = _wide(norm.running_mean)
    shifted = -mean if bias is None else _wide(bias) - mean
    return shifted * gain if norm.bias is None else shifted * gain + _wide(norm.bias)


def scale_channels(op: nn.Module, weight: Tensor, gain: Tensor) -> Tensor:
    """w * g, in the dtype of the weight."""
    return (_wide(weight) * per_channel(gain, op)).to(weight.dtype)


def per_channel(gain: Tensor, op: nn.Module) -> Tensor:
    """g, shaped to multiply the weight of a conv, transposed conv or linear."""
    weight = op.weight
    assert isinstance(weight, Tensor)
    if not isinstance(op, nn.modules.conv._ConvTransposeNd):
        return gain.reshape(-1, *(1,) * (weight.dim() - 1))
    # weight is (in, out / groups, ...): the output channel is (group, second axis)
    groups, inputs = op.groups, weight.shape[0]
    wide = gain.reshape(groups, 1, -1).expand(groups, inputs // groups, -1)
    return wide.reshape(inputs, -1, *(1,) * (weight.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    """In float64, which Apple's GPUs do not have."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)
