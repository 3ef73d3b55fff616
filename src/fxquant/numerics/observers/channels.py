"""The observer of a tensor of which a kernel takes every channel by itself: a depthwise convolution's input.

Where all channels do about as well on one grid, that is what they get, by the search in a histogram. Where they do not,
each has its own scale, and all have the zero point in common, as kernels pad with one:

    scale_c = max(high_c / (levels - z), -low_c / z)        z: with the least noise, of all that there are
    noise   = mean over c of min(1, scale_c^2 / 12 power_c) what rounding adds to a channel, beside its signal
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.config.spec import Spec
from fxquant.numerics.observers.histogram import HistogramObserver

_AUDIBLE = 1e-3  # noise that is worth it
_GAIN = 4.0  # by which it has to fall
_SMALLEST = 1e-4  # of the largest scale: what calibration hardly saw may be larger later


class ChannelsObserver(HistogramObserver):
    """Keeps a histogram, and the extremes and the power of each channel along the axis of its spec."""

    lows: Tensor
    highs: Tensor
    power: Tensor
    count: Tensor

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__(spec, name)
        self.register_buffer("lows", torch.tensor(math.inf))
        self.register_buffer("highs", torch.tensor(-math.inf))
        self.register_buffer("power", torch.tensor(0.0, dtype=torch.float64))  # sum of squares
        self.register_buffer("count", torch.tensor(0))  # of elements of a channel

    @property
    def _whole(self) -> Spec:
        return self.spec.with_(granularity="per_tensor", axis=0, observer="histogram")

    def _observe(self, x: Tensor) -> bool:
        if not super()._observe(x):
            return False
        axis = self.spec.axis % x.dim()
        others = [dim for dim in range(x.dim()) if dim != axis]
        self.lows = torch.minimum(self.lows, x.amin(others).float())
        self.highs = torch.maximum(self.highs, x.amax(others).float())
        self.power = self.power + torch.linalg.vector_norm(x, dim=others).double().square()
        self.count += x.numel() // x.shape[axis]
        return True

    def _merge(self, other: Self) -> None:
        super()._merge(other)
        device = self.lows.device
        self.lows = torch.minimum(self.lows, other.lows.to(device))
        self.highs = torch.maximum(self.highs, other.highs.to(device))
        self.power = self.power + other.power.to(device)
        self.count += other.count.to(device)

    @torch.no_grad()
    def range(self) -> tuple[Tensor, Tensor]:
        low, high = super().range()
        lows, highs, power = self.lows.clamp_max(0.0), self.highs.clamp_min(0.0), (self.power / self.count).float()
        flat = low.expand_as(lows), high.expand_as(highs)
        live = power > 0
        if not bool(live.any()) or not bool(torch.isfinite(power).all()):
            return flat
        own = self._own_ranges(lows, highs, power, live)
        before, after = (_noise((top - end) / self._levels, power, live) for end, top in (flat, own))
        return own if before > _AUDIBLE and before > _GAIN * after else flat

    @property
    def _levels(self) -> float:
        return float(self.spec.quant_max - self.spec.quant_min)

    def _own_ranges(self, lows: Tensor, highs: Tensor, power: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """Return a range for each channel, of which all have the same zero point."""
        if self.spec.symmetric:
            ends = torch.maximum(-lows, highs)
            ends = torch.where(ends > 0, ends.clamp_min(_SMALLEST * ends.max()), ends.max())
            return (-ends if bool((lows < 0).any()) else torch.zeros_like(ends)), ends
        below = torch.arange(self._levels + 1, device=lows.device)[:, None]  # steps under zero, by candidate
        scales = torch.maximum(_per(highs, self._levels - below), _per(-lows, below))
        largest = scales.amax(1, keepdim=True)
        scales = torch.where(scales > 0, scales.maximum(_SMALLEST * largest), largest)
        noise = torch.stack([_noise(scale, power, live) for scale in scales])
        best = int(noise.argmin())
        return -best * scales[best], (self._levels - best) * scales[best]


def _per(range_: Tensor, steps: Tensor) -> Tensor:
    """Return the scale that a range over so many steps asks for; without end, if there are none."""
    return torch.where(range_ > 0, range_ / steps, torch.zeros_like(steps))


def _noise(scale: Tensor, power: Tensor, live: Tensor) -> Tensor:
    return (scale.square() / 12 / power).clamp_max(1.0)[live].mean()
