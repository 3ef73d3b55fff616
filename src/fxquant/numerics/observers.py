"""Which observer a spec asks for.

minmax, moving_average, fixed       per tensor, channel or group
custom                              an observer of the user's own
histogram, entropy, percentile      per tensor from a histogram; per channel or group the plain extremes, since one
                                    histogram per channel is not kept; in training with "ste", which asks for a
                                    range at every step, a moving average
"""

from __future__ import annotations

from fxquant.core.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.custom_observer import CustomObserver
from fxquant.numerics.histogram_observer import HistogramObserver
from fxquant.numerics.minmax import FixedObserver, MinMaxObserver, MovingAverageObserver
from fxquant.numerics.observer_base import Observer

__all__ = ["Observer", "make_observer"]


def make_observer(spec: Spec, name: str) -> Observer:
    """A fresh observer for the tensor called `name`."""
    if spec.dynamic:
        raise ConfigError(
            f"tensor {name!r} ({spec}): a dynamic range is found at run time; there is nothing to observe."
        )
    if spec.observer == "custom":
        return CustomObserver(spec, name)
    if spec.observer == "fixed":
        return FixedObserver(spec, name)
    if spec.observer == "moving_average" or (spec.learn == "ste" and spec.observer != "minmax"):
        return MovingAverageObserver(spec, name)
    if spec.observer == "minmax" or spec.granularity != "per_tensor":
        return MinMaxObserver(spec, name)
    return HistogramObserver(spec, name)
