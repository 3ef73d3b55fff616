"""Learned step size, and its extension by a learned offset.

    LSQ     x' = round(clip(x / s, n, p)) * s            g_s scaled by 1 / sqrt(N p)            arXiv 1902.08153
    LSQ+    x' = round(clip((x - b) / s, n, p)) * s + b  b learned too                          arXiv 2004.09576

N is the number of values that share a step. The offset b is put on the grid (b = -z s for a whole z), so that zero
stays exact and the result converts to integers.

What is trained are log256 s and b as a share of the grid's width, b / ((p - n) s), with the gradients that move s and b
as far as the papers' do under plain descent (`relative_scale`). So Adam moves each by the same share of its size in a
step. On s and b themselves, at 1e-3, it would move a scale of 0.01 by a tenth, and one of 10 by nothing.

Both start from the least squared error. The papers' 2 mean|x| / sqrt(p) fits Gaussian values in large tensors; on the
9 values of a depthwise filter it clips those that matter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.learned.autograd_context import SavedFactor
from fxquant.numerics.learned.base import Learned, Own, log_of, put, relative_scale, scale_of, whole
from fxquant.numerics.learned.straight_through import straight_through


class Lsq(Learned):
    """A learned step."""

    def starting(self, spec: Spec) -> Spec:
        return by_least_squares(spec)

    def fake_quantize(self, own: Own, x: Tensor, spec: Spec) -> Tensor:
        return lsq(x, own[self.name], whole(own["zero_point"]), spec)


class LsqPlus(Learned):
    """A learned step and a learned offset."""

    def parameters(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        return {**super().parameters(shape), "offset": torch.zeros(shape)}

    def buffers(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        return {}

    def starting(self, spec: Spec) -> Spec:
        return by_least_squares(spec)

    def start(self, own: Own, scale: Tensor, zero_point: Tensor, spec: Spec) -> None:
        put(own["offset"], -zero_point / levels(spec))
        put(own[self.name], log_of(scale))

    def qparams(self, own: Own, spec: Spec) -> tuple[Tensor, Tensor]:
        return scale_of(own[self.name].detach().float()), zero_point_of(own["offset"].detach().float(), spec)

    def fake_quantize(self, own: Own, x: Tensor, spec: Spec) -> Tensor:
        return lsq_plus(x, own[self.name], own["offset"], spec)


def by_least_squares(spec: Spec) -> Spec:
    """Return the spec with a search for the range in the place of the extremes."""
    return spec.with_(observer="histogram") if spec.observer in ("minmax", "moving_average") else spec


def lsq(x: Tensor, log_scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned scale; the zero point is given."""
    step = relative_scale(log_scale, gradient_scale(x.numel(), log_scale.numel(), spec))
    return straight_through(x, step, zero_point, spec, margin=0.0)


def lsq_plus(x: Tensor, log_scale: Tensor, offset: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned scale and offset."""
    factor = gradient_scale(x.numel(), log_scale.numel(), spec)
    step = relative_scale(log_scale, factor)
    start = _RelativeOffset.apply(offset, step.detach() * levels(spec), factor)  # type: ignore[no-untyped-call]
    return straight_through(x, step, zero_point_of(offset, spec), spec, offset=start, margin=0.0)


def levels(spec: Spec) -> int:
    """Return the width of the grid, in steps."""
    return spec.quant_max - spec.quant_min


def gradient_scale(values: int, scales: int, spec: Spec) -> float:
    """1 / sqrt(N p), with N values for each scale."""
    return 1.0 / math.sqrt(max(values // max(scales, 1), 1) * spec.quant_max)


@torch.no_grad()
def zero_point_of(offset: Tensor, spec: Spec) -> Tensor:
    """Return the whole number z for which -z s lies next to the offset, a share of the width."""
    return torch.round(-offset * levels(spec)).clamp(spec.quant_min, spec.quant_max).to(torch.int32)


class _RelativeOffset(torch.autograd.Function):
    """The offset itself from its share of the width, with the gradient of `relative_scale`: G / width."""

    @staticmethod
    def forward(ctx: SavedFactor, share: Tensor, width: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(width)
        return share * width

    @staticmethod
    def backward(ctx: SavedFactor, grad: Tensor) -> tuple[Tensor, None, None]:
        (width,) = ctx.saved_tensors
        return grad * ctx.factor / width, None, None
