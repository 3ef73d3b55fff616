"""Quantize a weight tensor from its own values.

minmax, moving_average, fixed    the extremes of each channel (group, tensor), or the range of the spec
percentile                       per channel, the same tails as for activations, exact by sorting
histogram                        per channel, low and high scaled by the one ratio r that minimizes
                                 sum (w - fake_quantize(w; r low, r high))^2, over a grid of r
entropy                          as histogram: a KL clip has no meaning on the few values of a channel
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.core.spec import Spec
from fxquant.errors import CalibrationError, ConfigError
from fxquant.numerics.affine import channel_axis, choose_qparams, fake_quantize, quantize, split_groups
from fxquant.numerics.custom_observer import custom_qparams
from fxquant.numerics.ranges import tensor_range


@torch.no_grad()
def quantize_weight(weight: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """(q, scale, zero_point) of a weight of two or more axes; `name` is for messages."""
    check_weight(weight, spec, name)
    values = weight.detach().to(torch.float32)
    scale, zero_point = weight_qparams(values, spec, name)
    return quantize(values, scale, zero_point, spec), scale, zero_point


def weight_qparams(values: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of the range of a weight, or what an observer of the user's own says."""
    if spec.factory is not None:
        return custom_qparams(values, spec, name)
    return choose_qparams(*weight_range(values, spec), spec)


def weight_range(values: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """(low, high) shaped like the scale, found as `spec.observer` says; see the module docstring."""
    low, high = tensor_range(values, spec)
    if spec.range is not None:
        return torch.full_like(low, spec.range[0]), torch.full_like(high, spec.range[1])
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    if spec.observer == "percentile":
        return _percentile(values, low, high, spec)
    if spec.observer in ("histogram", "entropy"):
        return _least_squares(values, low, high, spec)
    return low, high


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


def _rows(values: Tensor, spec: Spec) -> Tensor:
    """The values of each channel, group or the whole tensor along the last axis, behind axes shaped like the scale."""
    if spec.granularity == "per_tensor":
        return values.reshape(-1)
    if spec.granularity == "per_group":
        return split_groups(values, spec)
    axis = channel_axis(values, spec)
    return values.movedim(axis, 0).reshape(values.shape[axis], -1)


def _percentile(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    rows = _rows(values, spec)
    tail = 1.0 - spec.percentile / 100.0
    if spec.symmetric:
        absmax = _sorted_quantile(rows.abs().sort(dim=-1).values, 1.0 - tail)
        return torch.maximum(low, -absmax), torch.minimum(high, absmax)
    rows = rows.sort(dim=-1).values
    two_sided = (low < 0) & (high > 0)
    half_low, half_high = _sorted_quantile(rows, tail / 2), _sorted_quantile(rows, 1.0 - tail / 2)
    new_low = torch.where(two_sided, half_low, _sorted_quantile(rows, tail))
    new_high = torch.where(two_sided, half_high, _sorted_quantile(rows, 1.0 - tail))
    return new_low.clamp(max=0.0), new_high.clamp(min=0.0)


def _sorted_quantile(rows: Tensor, q: float) -> Tensor:
    """Linear interpolation in sorted rows (torch.quantile refuses more than 16 million elements)."""
    at = q * (rows.shape[-1] - 1)
    below = int(at)
    above = min(below + 1, rows.shape[-1] - 1)
    return torch.lerp(rows[..., below], rows[..., above], at - below)


def _least_squares(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    best_error = torch.full_like(low, torch.inf)
    best_ratio = torch.ones_like(low)
    for ratio in _clip_ratios(spec.bits):
        scale, zero_point = choose_qparams(low * ratio, high * ratio, spec)
        squared = (fake_quantize(values, scale, zero_point, spec) - values).square_()
        error = _rows(squared, spec).sum(-1)
        better = error < best_error  # ties keep the wider range: ratios descend
        best_error = torch.where(better, error, best_error)
        best_ratio = best_ratio.masked_fill(better, ratio)
    return low * best_ratio, high * best_ratio


def _clip_ratios(bits: int) -> list[float]:
    """Ratios from 1 down. Gaussian rows of 2304 values are best at 1.0 (8 bits), 0.66 (4 bits), 0.29 (2 bits)."""
    last, step = (0.1, 0.05) if bits <= 3 else (0.3, 0.05) if bits <= 5 else (0.5, 0.05)
    return [1.0 - step * i for i in range(round((1.0 - last) / step) + 1)]
