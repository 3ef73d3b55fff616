"""The arithmetic of folding a batch norm into the op before it.

w' = w * g        b' = (b - mean) * g + beta        with g = gamma / sqrt(var + eps), per output channel
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm


FROZEN = "_fxquant_frozen"  # on a norm that keeps to its running statistics in train mode


def uses_batch_statistics(norm: BatchNorm) -> bool:
    """Whether a call now normalizes by the batch."""
    return norm.training and FROZEN not in norm.__dict__


def norm_gain(norm: BatchNorm) -> Tensor:
    """g, from the running statistics."""
    assert norm.running_var is not None
    gain = torch.rsqrt(norm.running_var + norm.eps)
    return gain if norm.weight is None else gain * norm.weight


def folded_bias(bias: Tensor | None, norm: BatchNorm, gain: Tensor) -> Tensor:
    """b'."""
    assert norm.running_mean is not None
    shifted = -norm.running_mean if bias is None else bias - norm.running_mean
    return shifted * gain if norm.bias is None else shifted * gain + norm.bias


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
