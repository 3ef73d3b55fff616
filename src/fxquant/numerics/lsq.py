"""Learned step size, and its extension by a learned offset.

    LSQ     x' = round(clip(x / s, n, p)) * s            g_s scaled by 1 / sqrt(N p)            arXiv 1902.08153
            s starts at 2 mean|x| / sqrt(p)
    LSQ+    x' = round(clip((x - b) / s, n, p)) * s + b  b learned too                          arXiv 2004.09576

N is the number of values that share a step. The offset b is put on the grid (b = -z s for a whole z), so that zero
stays exact and the result converts to integers; its gradient is the paper's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fxquant.core.spec import Spec
from fxquant.numerics.affine import MIN_SCALE, channel_axis, split_groups
from fxquant.numerics.straight_through import straight_through


def lsq(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned scale; the zero point is given."""
    step = scale_gradient(positive(scale), gradient_scale(x.numel(), scale.numel(), spec))
    return straight_through(x, step, zero_point, spec, margin=0.0)


def lsq_plus(x: Tensor, scale: Tensor, offset: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned scale and offset."""
    factor = gradient_scale(x.numel(), scale.numel(), spec)
    step = scale_gradient(positive(scale), factor)
    zero_point = zero_point_of(offset, step, spec)
    return straight_through(x, step, zero_point, spec, offset=scale_gradient(offset, factor), margin=0.0)


def lsq_start(x: Tensor, spec: Spec) -> Tensor:
    """The first step, 2 mean|x| / sqrt(p), in the shape of the scale."""
    return 2.0 * mean_like_scale(x.detach().float().abs(), spec) / math.sqrt(spec.quant_max)


def mean_like_scale(x: Tensor, spec: Spec) -> Tensor:
    """The mean over what shares a scale."""
    if spec.granularity == "per_tensor":
        return x.mean()
    if spec.granularity == "per_group":
        return split_groups(x, spec).mean(-1)
    axis = channel_axis(x, spec)
    return x.mean([d for d in range(x.dim()) if d != axis])


def gradient_scale(values: int, scales: int, spec: Spec) -> float:
    """1 / sqrt(N p), with N values for each scale."""
    return 1.0 / math.sqrt(max(values // max(scales, 1), 1) * spec.quant_max)


def positive(scale: Tensor) -> Tensor:
    """The size of a learned scale: an optimizer may step across zero."""
    return scale.abs().clamp_min(MIN_SCALE)


@torch.no_grad()
def zero_point_of(offset: Tensor, scale: Tensor, spec: Spec) -> Tensor:
    """The whole number z for which -z s lies next to the offset."""
    return torch.round(-offset / scale).clamp(spec.quant_min, spec.quant_max).to(torch.int32)


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    """The value itself, with its gradient multiplied."""
    result: Tensor = _ScaleGradient.apply(value, factor)  # type: ignore[no-untyped-call]
    return result


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None
