"""Quantize a weight tensor from its own values.

The range is found as `spec.observer` says (numerics/observers/table.py): the extremes of each channel (group, tensor),
or what a search makes of its values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.errors import CalibrationError, ConfigError
from fxquant.numerics.affine import choose_qparams, quantize
from fxquant.numerics.observers.custom import custom_qparams
from fxquant.numerics.observers.table import OBSERVERS
from fxquant.numerics.ranges import tensor_range


@torch.no_grad()
def quantize_weight(weight: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """(q, scale, zero_point) of a weight of two or more axes; `name` is for messages."""
    scale, zero_point = find_weight_qparams(weight, spec, name)
    return quantize(weight.detach().to(torch.float32), scale, zero_point, spec), scale, zero_point


@torch.no_grad()
def find_weight_qparams(weight: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of a weight, which is checked."""
    check_weight(weight, spec, name)
    return weight_qparams(weight.detach().to(torch.float32), spec, name)


def weight_qparams(values: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of the range of a weight, or what an observer of the user's own says."""
    if spec.factory is not None:
        return custom_qparams(values, spec, name)
    return choose_qparams(*weight_range(values, spec), spec)


def weight_range(values: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """(low, high) shaped like the scale, found as `spec.observer` says."""
    return OBSERVERS[spec.observer].weight(values, *tensor_range(values, spec), spec)


def check_weight(weight: Tensor, spec: Spec, name: str) -> None:
    """Raise if a weight cannot be quantized."""
    shape = tuple(weight.shape)
    if weight.dim() < 2 or weight.numel() == 0 or not weight.is_floating_point():
        raise ConfigError(
            f"weight {name!r} of shape {shape} and {weight.dtype} cannot be quantized: expected a non-empty float "
            "tensor of two or more axes. Leave its module in float (qconfig None)."
        )
    if spec.granularity == "per_channel" and not -weight.dim() <= spec.axis < weight.dim():
        raise ConfigError(f"weight {name!r} of shape {shape} has no axis {spec.axis}. Choose another Spec(axis=...).")
    if spec.group_size is not None and shape[-1] % spec.group_size:
        raise ConfigError(
            f"weight {name!r} of shape {shape}: its last axis of {shape[-1]} is not a multiple of "
            f"group_size={spec.group_size}. Choose a group_size that divides {shape[-1]}, or use per_channel."
        )
    if not bool(torch.isfinite(weight.to(torch.float32)).all()):
        raise CalibrationError(
            f"weight {name!r} holds NaN, infinity or a value beyond float32. Check the checkpoint it was loaded from."
        )
