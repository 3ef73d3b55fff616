"""Rounding to a grid with a gradient: the one autograd function behind every quantizer that trains.

    forward     x' = clamp(round(x / s), n - z, p - z) * s             the values of `fake_quantize`, bit for bit
    to x        g where x lies inside, 0 elsewhere                     (straight through the rounding)
    to s        sum g * (x' - x) / s inside, sum g * x' / s where x is clipped: z stays
    to b        sum g where x is clipped                               b: a learned offset

"Inside" means that x / s + z lies in (n - margin, p + margin): margin 1/2 where all that rounds to the grid counts
(STE, TQT), 0 where clipping comes before rounding (LSQ, PACT).

torch's own fake_quantize kernels take 5 to 10 times as long on a CPU (no vector code) and save a mask; here the input
is saved, which the ReLU before it keeps for its own backward anyway.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fxquant.config.spec import Spec
from fxquant.graph.rounding import round_to
from fxquant.numerics.affine import broadcast_qparam, choose_qparams, split_groups
from fxquant.numerics.learned.autograd_context import Saved
from fxquant.numerics.ranges import storage_order

Number: TypeAlias = float | Tensor


def straight_through(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    spec: Spec,
    *,
    offset: Tensor | None = None,
    margin: float = 0.5,
    inside: bool = True,
) -> Tensor:
    """x on the grid, in its own dtype. `offset` only receives a gradient: the grid starts where `zero_point` says.

    `inside=False` leaves out the part of the scale's gradient that comes from values inside the range (PACT).
    """
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    values = split_groups(x.to(compute), spec)
    rounded: Tensor = _RoundToGrid.apply(values, scale, zero_point, offset, spec, margin, inside)  # type: ignore[no-untyped-call]
    return rounded.to(x.dtype).reshape(x.shape)


def observed_fake_quantize(x: Tensor, low: Tensor, high: Tensor, spec: Spec) -> Tensor:
    """x on the grid of a range that is not learned, with the straight-through gradient."""
    return straight_through(x, *choose_qparams(low, high, spec), spec)


class _Rounding(Saved, Protocol):
    spec: Spec
    margin: float
    inside: bool
    shape: torch.Size


class _RoundToGrid(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Rounding,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        offset: Tensor | None,
        spec: Spec,
        margin: float,
        inside: bool,
    ) -> Tensor:
        ctx.spec, ctx.margin, ctx.inside, ctx.shape = spec, margin, inside, scale.shape
        inverse, step, low, high = _grid(x, scale, zero_point, spec)
        result = x * inverse
        result = result.round_() if spec.rounding == "half_even" else round_to(result, spec.rounding)
        result = result.clamp_(low, high).mul_(step)
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[3]
        ctx.save_for_backward(x, scale, zero_point, *((result,) if learned else ()))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: _Rounding, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point, *rest = ctx.saved_tensors
        _, step, low, high = _grid(x, scale, zero_point, ctx.spec)
        grad = grad.to(x.dtype)
        # a floor sends all of [p, p + 1) to p
        down, up = (0.0, 2 * ctx.margin) if ctx.spec.rounding == "floor" else (ctx.margin, ctx.margin)
        through = _inside(grad, x, (low - down) * step, (high + up) * step)
        if not rest:
            return through, None, None, None, None, None, None
        clipped = grad - through
        to_offset = _total(clipped, None, ctx) if ctx.needs_input_grad[3] else None
        to_scale = _total(clipped, rest[0], ctx)
        if ctx.inside:
            to_scale = to_scale + _total(through, rest[0] - x, ctx)
        return through, to_scale / scale, None, to_offset, None, None, None


def _grid(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> tuple[Number, Number, Any, Any]:
    """(1 / step, step, lowest, highest level) for x: plain numbers per tensor, which the fast kernels ask for."""
    if spec.granularity == "per_tensor":
        step = scale.reshape(()).to(x.dtype)
        inverse, value, zero = torch.stack((1.0 / step, step, zero_point.reshape(()).to(x.dtype))).tolist()
        return inverse, value, spec.quant_min - zero, spec.quant_max - zero
    step, zero_points = broadcast_qparam(scale, x, spec), broadcast_qparam(zero_point, x, spec)
    return 1.0 / step, step, spec.quant_min - zero_points, spec.quant_max - zero_points


def _inside(grad: Tensor, x: Tensor, low: Number, high: Number) -> Tensor:
    """grad where low < x < high, 0 elsewhere."""
    if isinstance(low, float):
        return torch.ops.aten.hardtanh_backward(grad, x, low, high)  # type: ignore[no-any-return]
    return torch.where((x > low) & (x < high), grad, 0.0)


def _total(grad: Tensor, factor: Tensor | None, ctx: _Rounding) -> Tensor:
    """sum(grad * factor) over all that one scale covers, in the shape of the scale."""
    spec: Spec = ctx.spec
    if spec.granularity == "per_tensor":
        if factor is None:
            return grad.sum().reshape(ctx.shape)
        if grad.stride() == factor.stride():
            return torch.dot(storage_order(grad), storage_order(factor)).reshape(ctx.shape)
        return (grad * factor).sum().reshape(ctx.shape)
    product = grad if factor is None else grad * factor
    if spec.granularity == "per_group":
        return product.sum(-1)
    axis = spec.axis % product.dim()
    return product.sum([d for d in range(product.dim()) if d != axis])
