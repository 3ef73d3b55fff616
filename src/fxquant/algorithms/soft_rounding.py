"""A weight between two grid points: the rounding up or down of each of its numbers as something that can be learned.

    w' = s (clip(floor(w / s) + h + z) - z)        h = clip(1.2 sigmoid(v) - 0.1, 0, 1)

It starts at the float weight, h = w / s - floor(w / s), and ends with h at 0 or 1. From integers that another way chose
it starts close to them, between each and the one next to it on the side of the float weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.config.spec import Spec

_LOW, _HIGH = -0.1, 1.1  # h is stretched, so that it reaches 0 and 1
_LEAN = 0.3  # from the middle to what was chosen


class SoftRounding:
    """The rounding of one weight; `step` and `zero` have its shape. `v` is what is learned, from `start` if given."""

    def __init__(self, weight: Tensor, step: Tensor, zero: Tensor, spec: Spec, start: Tensor | None = None) -> None:
        self.step, self.zero, self.spec = step, zero, spec
        scaled = weight.detach() / step
        self.floor = torch.floor(scaled)
        self.rest = scaled - self.floor
        if start is not None:
            chosen = start.to(scaled.dtype) - zero
            up = scaled < chosen
            self.floor = chosen - up.to(chosen.dtype)
            self.rest = 0.5 + _LEAN * (2 * up.to(chosen.dtype) - 1)
        inside = (self.rest.clamp(1e-4, 1 - 1e-4) - _LOW) / (_HIGH - _LOW)
        self.v = torch.log(inside / (1 - inside)).requires_grad_()

    def h(self) -> Tensor:
        return (torch.sigmoid(self.v) * (_HIGH - _LOW) + _LOW).clamp(0, 1)

    def nearest(self) -> Tensor:
        """h of rounding to the nearest, or of what it started from."""
        return (self.rest >= 0.5).to(self.rest.dtype)

    def decided(self) -> Tensor:
        """h, with each number up or down."""
        return (self.h().detach() >= 0.5).to(self.rest.dtype)

    def values(self, h: Tensor) -> Tensor:
        """Return the weight for some h."""
        return (self._on_grid(h) - self.zero) * self.step

    def integers(self, h: Tensor) -> Tensor:
        return self._on_grid(h).to(self.spec.dtype)

    def undecided(self, h: Tensor, sharpness: float) -> Tensor:
        """0 where all are up or down, up to 1."""
        return (1 - (2 * h - 1).abs().pow(sharpness)).mean()

    def _on_grid(self, h: Tensor) -> Tensor:
        return (self.floor + h + self.zero).clamp(self.spec.quant_min, self.spec.quant_max)


def sharpness(done: float) -> float:
    """Return the exponent of the regularizer, from 20 to 2 along half a cosine."""
    return 2 + 18 * 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
