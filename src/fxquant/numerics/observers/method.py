"""What a way to find a range is: what looks at activations, what calibration keeps for it, the range of a weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.observers.base import Observer

# (values, exact low, exact high, spec) -> (low, high), shaped like the scale
WeightRange = Callable[[Tensor, Tensor, Tensor, Spec], tuple[Tensor, Tensor]]


def extremes(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Return the exact range of a weight, 0 included."""
    return low.clamp(max=0.0), high.clamp(min=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One row of the table of observers.

    `kept` is the spec of the observer that calibration runs while signs, bits and zero points are open; None if there
    is nothing to keep.
    """

    observer: Callable[[Spec, str], Observer]
    kept: Callable[[Spec], Spec | None]
    weight: WeightRange = extremes
