"""Trained quantization thresholds: a power-of-two scale behind a learned log2 threshold (arXiv 1903.08066).

    s = 2^ceil(log2 t) / levels          x' = clamp(round(x / s), n, p) * s          rounding half to even
    to log2 t:  s ln 2 * sum g * { round(x / s) - x / s inside, n below, p above }

levels is 2^(b-1) for a signed grid and 2^b for an unsigned one that starts at zero. The ceiling passes its gradient
straight through, so to log2 t = s ln 2 * (the gradient to s).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.learned.autograd_context import Saved
from fxquant.numerics.learned.base import Learned, Own, put, whole
from fxquant.numerics.learned.straight_through import straight_through


class Tqt(Learned):
    """A learned threshold, in log2."""

    name = "log2_threshold"
    unset = -math.inf

    def log_size(self, log2: Tensor) -> Tensor:
        return log2

    def start(self, own: Own, scale: Tensor, zero_point: Tensor, spec: Spec) -> None:
        put(own["zero_point"], zero_point)
        put(own[self.name], threshold_of(scale, zero_point, spec))

    def qparams(self, own: Own, spec: Spec) -> tuple[Tensor, Tensor]:
        zero_point = whole(own["zero_point"])
        return tqt_scale(own[self.name].detach().float(), zero_point, spec), zero_point

    def fake_quantize(self, own: Own, x: Tensor, spec: Spec) -> Tensor:
        return tqt(x, own[self.name], whole(own["zero_point"]), spec)


def tqt(x: Tensor, log2_threshold: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned threshold."""
    return straight_through(x, tqt_scale(log2_threshold, zero_point, spec), zero_point, spec)


def tqt_scale(log2_threshold: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """2^ceil(log2 t) / levels; the gradient passes the ceiling."""
    levels = spec.quant_max + 1 - zero_point.to(log2_threshold.dtype)
    scale: Tensor = _PowerOfTwo.apply(log2_threshold, levels)  # type: ignore[no-untyped-call]
    return scale


def threshold_of(scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Return the log2 threshold in the middle of those that give a power-of-two scale: half a step from either jump."""
    return torch.log2(scale * (spec.quant_max + 1 - zero_point)) - 0.5


class _PowerOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Saved, exponent: Tensor, levels: Tensor) -> Tensor:
        # ldexp is exact; exp2 need not be
        scale = torch.ldexp(1.0 / levels, exponent.ceil().to(torch.int32))
        ctx.save_for_backward(scale)
        return scale

    @staticmethod
    def backward(ctx: Saved, grad: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grad * scale * math.log(2.0), None
