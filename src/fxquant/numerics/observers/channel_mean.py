"""The mean of each channel over calibration, for bias correction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.numerics.observers.watcher import Watcher, shows_numbers

_MOST = 1 << 20  # elements looked at per call: whole samples, others from call to call


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """The means of a tensor's channels, which lie along `axis`, as a statistic to keep. `rank` is a batch's."""

    channels: int
    axis: int
    rank: int = 0

    @property
    def label(self) -> str:
        return f"mean_{self.channels}_{'last' if self.axis == -1 else self.axis}"

    def make(self) -> ChannelMean:
        return ChannelMean(self.channels, self.axis, self.rank)


class ChannelMean(Watcher):
    """Watches a tensor whose channels lie along `axis`, or one before in a sample alone. Keeps one sum per channel."""

    total: Tensor
    count: Tensor

    def __init__(self, channels: int, axis: int, rank: int = 0) -> None:
        super().__init__()
        self.axis = axis
        self.rank = rank
        self.register_buffer("total", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    @torch.no_grad()
    def forward(self, x: Tensor) -> None:
        if not shows_numbers(x):
            return
        if self.axis > 0 and x.dim() == self.rank - 1:
            x = x.unsqueeze(0)  # a picture without a batch
        axis = self.axis % x.dim()
        if x.shape[axis] != self.total.numel():
            return
        if axis != 0 and x.shape[0] > 1:
            samples = max(min(_MOST * x.shape[0] // x.numel(), x.shape[0]), 1)
            start = self.calls * samples % x.shape[0]
            x = x[start : start + samples]
        self.calls += 1
        others = [dim for dim in range(x.dim()) if dim != axis]
        mean = x.detach().mean(others, dtype=torch.float32) if others else x.detach().float()
        if self.total.device != x.device:
            self.to(x.device)
        rows = x.numel() // self.total.numel()
        self.total += mean.to(torch.float64) * rows
        self.count += rows

    def merge(self, other: ChannelMean) -> None:
        self.total += other.total.to(self.total.device)
        self.count += other.count.to(self.count.device)

    def fresh(self) -> ChannelMean:
        return ChannelMean(self.total.numel(), self.axis, self.rank)

    def mean(self) -> Tensor | None:
        """float32, one number per channel; None if nothing was seen, or something infinite."""
        if not int(self.count) or not bool(torch.isfinite(self.total).all()):
            return None
        return (self.total / self.count).to(torch.float32)
