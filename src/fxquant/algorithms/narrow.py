"""Ranges of the rows of a weight that are narrower than its extremes, where few bits make that pay."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.ranges import tensor_range

NARROWER = tuple(1 - 0.05 * step for step in range(10))  # shares of the range that are tried


def whole_scales(weight: Tensor, scale: Tensor, spec: Spec) -> list[Tensor]:
    """Return the scales to try of a weight with one, which a few large rows may have widened: that given first.

    They are counted from the extremes of all rows, whatever an observer that knows no inputs made of them.
    """
    if spec.granularity != "per_tensor" or spec.observer in ("fixed", "custom"):
        return [scale]
    widest = scale
    if spec.symmetric:  # else a zero point goes with the scale
        widest, _ = choose_qparams(*tensor_range(weight, spec), spec.with_(observer="minmax"))
    shares = (1.0, 0.5, 0.25) if spec.scale == "pow2" else (1.0, 0.8, 0.65, 0.5)
    return [scale, *(each for each in (widest * share for share in shares) if not torch.equal(each, scale))]


def may_narrow(spec: Spec) -> bool:
    """Tell whether each row may have a range of its own, and it matters."""
    by_row = spec.granularity == "per_group" or (spec.granularity == "per_channel" and spec.axis == 0)
    return by_row and spec.bits < 8 and spec.scale == "float" and spec.observer not in ("fixed", "custom")


@torch.no_grad()
def narrow(weight: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Return the scale with which each row loses least by rounding to the nearest."""
    if not may_narrow(spec):
        return scale
    losses = torch.stack(
        [
            (weight - fake_quantize(weight, scale * share, zero_point, spec)).square().flatten(1).sum(1)
            for share in NARROWER
        ]
    )
    kept = torch.tensor(NARROWER, device=weight.device)[losses.argmin(0)]
    return scale * kept.view(-1, *[1] * (scale.dim() - 1))
