"""What is kept of a tensor in the float and the quantized model, batch by batch, in constant memory.

SQNR = 10 log10(sum y^2 / sum (y' - y)^2)   in dB        cosine = sum y y' / (|y| |y'|)

Values that are not finite, or as large as the sentinels of additive masks, are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.numerics.observers.base import sentinel_limit

_PART = 8192
EQUAL = 200.0  # dB, of tensors that are equal


def decibel(signal: float, noise: float) -> float:
    """Return a signal-to-noise ratio, between -EQUAL and EQUAL."""
    if not noise:
        return EQUAL
    return max(min(10 * math.log10(signal / noise), EQUAL), -EQUAL) if signal else -EQUAL


@dataclass(slots=True)
class Errors:
    """Sums over all batches of a tensor y and what came in its place."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    dot: float = 0.0
    largest: float = 0.0
    count: int = 0

    def add(self, wanted: Tensor, found: Tensor) -> None:
        """Take in a batch."""
        y, z = _flat(wanted), _flat(found)
        error = z - y
        signal, noise = _dot(y, y), _dot(error, error)
        if not (math.isfinite(signal) and math.isfinite(noise)):  # what is no signal has no finite square
            y, z = _ordinary(y, z)
            error = z - y
            signal, noise = _dot(y, y), _dot(error, error)
        if not y.numel():
            return
        between = _dot(y, error)
        self.signal += signal
        self.noise += noise
        self.other += max(signal + 2 * between + noise, 0.0)  # z = y + error
        self.dot += signal + between
        self.largest = max(self.largest, *(abs(float(end)) for end in torch.aminmax(error)))
        self.count += y.numel()

    @property
    def sqnr(self) -> float:
        return decibel(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        norm = math.sqrt(self.signal) * math.sqrt(self.other)
        return max(-1.0, min(1.0, self.dot / norm)) if norm else float(self.signal == self.other)


@dataclass(slots=True)
class Ranges:
    """The ranges of a float tensor over the batches. `widened` is the last batch that made the whole range wider."""

    low: float = math.inf
    high: float = -math.inf
    batches: int = 0
    widened: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, wanted: Tensor) -> None:
        """Take in a batch."""
        y = _flat(wanted)
        if not y.numel():
            return
        low, high = (float(end) for end in torch.aminmax(y))
        if not max(-low, high) < sentinel_limit(torch.float32):
            y, _ = _ordinary(y, y)
            if not y.numel():
                return
            low, high = (float(end) for end in torch.aminmax(y))
        self.batches += 1
        if low < self.low or high > self.high:
            self.widened = self.batches
        self.low, self.high = min(self.low, low), max(self.high, high)
        width = high - low  # mean and variance as Welford has them
        step = width - self.mean
        self.mean += step / self.batches
        self.squares += step * (width - self.mean)

    @property
    def spread(self) -> float:
        """The standard deviation of the batches' widths, of their mean."""
        return math.sqrt(self.squares / self.batches) / self.mean if self.batches and self.mean else 0.0


@dataclass(slots=True)
class Rounding:
    """What a grid does to the values of the float model: how many it clips, and how many others it makes zero."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    clipped: int = 0
    collapsed: int = 0

    def add(self, wanted: Tensor, scale: Tensor, zero_point: Tensor, ends: tuple[int, int]) -> None:
        """Take in a batch; scale and zero point are shaped to go with it."""
        low, high = (ends[0] - zero_point) * scale, (ends[1] - zero_point) * scale
        half, size = scale / 2, wanted.abs()  # what is less than half a step outside is rounded like the rest
        count = torch.count_nonzero
        ordinary = size < sentinel_limit(wanted.dtype)
        seen = int(count(ordinary))
        outside = (wanted < low - half) | (wanted > high + half)
        self.clipped += int(count(outside if seen == wanted.numel() else outside & ordinary))
        self.collapsed += int(count(size < half) - count(wanted == 0))
        self.count += seen
        self.low, self.high = min(self.low, float(low.min())), max(self.high, float(high.max()))


def _ordinary(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both flat, in float32, without what is no signal."""
    y, z = _flat(y), _flat(z)
    if not y.numel():
        return y, z
    limit = sentinel_limit(torch.float32)
    ends = [abs(float(end)) for each in (y, z) for end in torch.aminmax(each)]
    if not all(end < limit for end in ends):  # so that nan counts, too
        whole = (y.abs() < limit) & (z.abs() < limit)
        y, z = y[whole], z[whole]
    return y, z


def _flat(x: Tensor) -> Tensor:
    return x.detach().float().reshape(-1)


def _dot(x: Tensor, y: Tensor) -> float:
    """Return the sum of products: in single precision within a part, in double between them."""
    return sum(float(torch.dot(a, b)) for a, b in zip(x.split(_PART), y.split(_PART), strict=True))
