"""The lowest and highest value of each channel over calibration, for equalization."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.numerics.observers.watcher import Watcher, shows_numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Extremes:
    """The extremes of a tensor's channels, which lie along `axis`, as a statistic to keep."""

    channels: int
    axis: int

    @property
    def label(self) -> str:
        return f"extremes_{self.channels}_{'last' if self.axis == -1 else self.axis}"

    def make(self) -> ChannelExtremes:
        return ChannelExtremes(self.channels, self.axis)


class ChannelExtremes(Watcher):
    """Watches a tensor whose channels lie along `axis`. What is not finite is passed over."""

    low: Tensor
    high: Tensor

    def __init__(self, channels: int, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("low", torch.full((channels,), math.inf))
        self.register_buffer("high", torch.full((channels,), -math.inf))

    @torch.no_grad()
    def forward(self, x: Tensor) -> None:
        if not shows_numbers(x):
            return
        axis = self.axis % x.dim()
        if x.shape[axis] != self.low.numel():
            return
        others = [dim for dim in range(x.dim()) if dim != axis]
        low, high = (x.amin(others), x.amax(others)) if others else (x, x)
        if self.low.device != x.device:
            self.to(x.device)
        self.low = torch.fmin(self.low, low.float().nan_to_num(math.inf, math.inf, math.inf))
        self.high = torch.fmax(self.high, high.float().nan_to_num(-math.inf, -math.inf, -math.inf))

    def merge(self, other: ChannelExtremes) -> None:
        self.low = torch.minimum(self.low, other.low.to(self.low.device))
        self.high = torch.maximum(self.high, other.high.to(self.high.device))

    def fresh(self) -> ChannelExtremes:
        return ChannelExtremes(self.low.numel(), self.axis)

    def range(self) -> tuple[Tensor, Tensor] | None:
        """(low, high) in float32, one number per channel; None if a channel showed nothing finite."""
        return (self.low, self.high) if bool((self.low <= self.high).all()) else None
