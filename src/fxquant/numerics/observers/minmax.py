"""Observers that remember a low and a high: the extremes, their moving average, or a range given in advance.

minmax            low = min over batches,           high = max over batches
moving_average    low += momentum * (min - low)     from the first batch on, high alike
fixed             low, high = spec.range
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.observers.base import Observer


class MinMaxObserver(Observer):
    """The exact extremes of all data, per tensor, channel or group. Merging is exact."""

    def _observe(self, x: Tensor) -> bool:
        ends = _ends(self, x)
        if ends is None:
            return False
        self.low, self.high = torch.minimum(self.low, ends[0]), torch.maximum(self.high, ends[1])
        return True

    def _merge(self, other: Self) -> None:
        _check_shape(self, other.low)
        self.low = torch.minimum(self.low, other.low.to(self.low.device))
        self.high = torch.maximum(self.high, other.high.to(self.high.device))


class MovingAverageObserver(Observer):
    """Exponential moving average of each batch's extremes.

    The order of two separately seen streams is not known, so merging weighs both averages by their batches.
    """

    def _observe(self, x: Tensor) -> bool:
        ends = _ends(self, x)
        if ends is None:
            return False
        self._move(*ends, self.spec.momentum if self.seen else 1.0)
        return True

    def _merge(self, other: Self) -> None:
        _check_shape(self, other.low)
        share = int(other.batches) / (int(self.batches) + int(other.batches))
        self._move(other.low.to(self.low.device), other.high.to(self.high.device), share)

    def _move(self, low: Tensor, high: Tensor, weight: float) -> None:
        if weight == 1.0:  # the first batch: infinity has no average
            self.low, self.high = low.clone(), high.clone()
        else:
            self.low, self.high = torch.lerp(self.low, low, weight), torch.lerp(self.high, high, weight)


class FixedObserver(Observer):
    """The range of the spec, whatever the data; looks at none of it, so it costs nothing and needs no calibration."""

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__(spec, name)
        if spec.range is None:
            raise ConfigError(f"tensor {name!r}: a fixed observer needs Spec(observer='fixed', range=(low, high)).")
        self.low.fill_(spec.range[0])
        self.high.fill_(spec.range[1])

    @property
    def seen(self) -> bool:
        return True

    def _observe(self, x: Tensor) -> bool:
        return True

    def _merge(self, other: Self) -> None:
        pass


def given_range(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Return the range of the spec for a weight, whatever its values."""
    assert spec.range is not None
    return torch.full_like(low, spec.range[0]), torch.full_like(high, spec.range[1])


def _ends(observer: Observer, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the extremes of a batch, of the shape of those before; None if it holds nothing."""
    clean = observer.clean(x)
    if clean is None:
        return None
    _, low, high = clean
    _check_shape(observer, low)
    return low, high


def _check_shape(observer: Observer, low: Tensor) -> None:
    if observer.low.dim() and observer.low.shape != low.shape:
        raise ConfigError(
            f"tensor {observer.name!r} ({observer.spec}) changed its number of channels or groups between batches, "
            f"from {tuple(observer.low.shape)} to {tuple(low.shape)}. Use per_tensor, or a dynamic spec, for it."
        )
