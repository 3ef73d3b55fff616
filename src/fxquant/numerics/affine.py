"""The affine map between real tensors and integer tensors, as pure functions.

    quantize      q  = clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)
    dequantize    x' = (q - zero_point) * scale

The arithmetic is float32 (float64 for float64 inputs), and for "half_even" it is bit-equal to the ops of
`quantized_decomposed`: they take 1 / scale in double and round it to float32, which for a float32 scale gives the
same bits as dividing in float32, so no scale has to leave its device.

Scale and zero point have the shape () per tensor, (channels,) per channel along `spec.axis`, and
x.shape[:-1] + (x.shape[-1] / group_size,) per group.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.graph.rounding import round_to

# 1 / scale must be a finite float32. Where the product of two scales is less than float32 holds, so is the result.
MIN_SCALE = 2.0**-120
# Half of the largest float32: high - low of two such values is still finite.
MAX_MAGNITUDE = torch.finfo(torch.float32).max / 2


def choose_qparams(low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Scale (float32) and zero point (int32) for real ranges [low, high], elementwise. Zero is always exact.

    Ranges are widened to include 0. Asymmetric: scale = (high - low) / (quant_max - quant_min), zero point nudged to a
    whole number. Symmetric signed: scale = absmax / quant_max, zero point 0. Symmetric unsigned: zero point 0 where
    low >= 0, else the middle of the grid, (quant_max + 1) / 2. "pow2" rounds the scale up, so the range never
    overflows. The empty range [0, 0] gets the scale 1.
    """
    low = low.detach().to(torch.float32).clamp(-MAX_MAGNITUDE, 0.0)
    high = high.detach().to(torch.float32).clamp(0.0, MAX_MAGNITUDE)
    middle = 0 if spec.signed else (spec.quant_max + 1) // 2
    if spec.symmetric:
        zero_point = torch.where(low < 0, middle, 0).to(torch.int32)
        steps = spec.quant_max - zero_point.to(torch.float32)
        scale = torch.maximum(-low, high) / steps
    else:
        scale = (high - low) / float(spec.quant_max - spec.quant_min)
    scale = torch.where(scale > 0, scale.clamp_min(max(MIN_SCALE, spec.min_scale)), 1.0)
    if spec.scale == "pow2":
        scale = _next_power_of_two(scale)
    if not spec.symmetric:
        nudged = spec.quant_min - torch.round(low / scale)
        zero_point = nudged.clamp(spec.quant_min, spec.quant_max).to(torch.int32)
    return scale, zero_point


def _next_power_of_two(scale: Tensor) -> Tensor:
    """Return the smallest power of two >= scale, for positive normal float32.

    Any mantissa bit is carried into the exponent.
    """
    bits = scale.contiguous().view(torch.int32)
    return ((bits + 0x007FFFFF) & 0x7F800000).view(torch.float32)


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Integers of `spec.dtype`, of the shape of x."""
    return _to_grid(x, scale, zero_point, spec).to(spec.dtype).reshape(x.shape)


def dequantize(q: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the real values that the integers stand for, in `dtype`."""
    compute = _compute_dtype(dtype)
    return _from_grid(split_groups(q.to(compute), spec), scale, zero_point, spec).to(dtype).reshape(q.shape)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """dequantize(quantize(x)) in the dtype of x, bit-equal to the two steps. A NaN stays NaN: no integer is stored."""
    made = _to_grid(x, scale, zero_point, spec)
    if made.requires_grad:
        made = _from_grid(made, scale, zero_point, spec)
    else:  # new memory for each step would take most of the time
        made.sub_(broadcast_qparam(zero_point, made, spec)).mul_(broadcast_qparam(scale, made, spec))
    return made.to(x.dtype).reshape(x.shape)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _to_grid(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    x = split_groups(x.to(_compute_dtype(x.dtype)), spec)
    scaled = x * (1.0 / broadcast_qparam(scale, x, spec))
    zero_point = broadcast_qparam(zero_point, x, spec)
    if scaled.requires_grad or zero_point.requires_grad:
        return (round_to(scaled, spec.rounding) + zero_point).clamp(spec.quant_min, spec.quant_max)
    rounded = scaled.round_() if spec.rounding == "half_even" else round_to(scaled, spec.rounding)
    return rounded.add_(zero_point).clamp_(spec.quant_min, spec.quant_max)


def _from_grid(q: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    return (q - broadcast_qparam(zero_point, q, spec)) * broadcast_qparam(scale, q, spec)


def split_groups(x: Tensor, spec: Spec) -> Tensor:
    """x, with the last axis split into (groups, group_size) for a "per_group" spec."""
    if spec.group_size is None:
        return x
    if x.dim() == 0 or x.shape[-1] % spec.group_size:
        raise ConfigError(
            f"Spec(group_size={spec.group_size}): the last axis of a tensor of shape {tuple(x.shape)} is not a whole "
            "number of groups. Choose a group_size that divides it, or leave this tensor per_channel."
        )
    return x.reshape(*x.shape[:-1], x.shape[-1] // spec.group_size, spec.group_size)


def broadcast_qparam(param: Tensor, x: Tensor, spec: Spec) -> Tensor:
    """Return a scale or zero point, shaped and typed to combine with x (already split into groups for "per_group")."""
    param = param.to(device=x.device, dtype=x.dtype)
    if spec.granularity == "per_tensor":
        return param.reshape(())
    if spec.granularity == "per_group":
        return param.unsqueeze(-1)
    shape = [1] * x.dim()
    shape[channel_axis(x, spec)] = -1
    return param.reshape(shape)


def channel_axis(x: Tensor, spec: Spec) -> int:
    """`spec.axis` as a non-negative index into the shape of x."""
    if not -x.dim() <= spec.axis < x.dim():
        raise ConfigError(f"Spec(axis={spec.axis}): a tensor of shape {tuple(x.shape)} has no such axis.")
    return spec.axis % x.dim()


def sqnr_db(reference: Tensor, actual: Tensor) -> float:
    """Signal to quantization noise, 10 log10(sum(reference^2) / sum((reference - actual)^2)); inf when equal."""
    # On the host: float64 does not exist on every device.
    wanted = reference.detach().cpu().double()
    noise = (wanted - actual.detach().cpu().double()).square().sum().item()
    signal = wanted.square().sum().item()
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf
