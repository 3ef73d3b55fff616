"""The ways to find a range, by the name that `Spec.observer` has for them.

minmax, moving_average, fixed       per tensor, channel or group
custom                              an observer of the user's own
channels                            one grid, or a scale for each channel where that is much better
histogram, entropy, percentile      per tensor from a histogram; per channel or group the plain extremes, since one
                                    histogram per channel is not kept; in training with "ste", which asks for a
                                    range at every step, a moving average
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from fxquant.config.spec import Granularity, ObserverKind, Spec
from fxquant.errors import ConfigError
from fxquant.numerics.observers.base import Observer
from fxquant.numerics.observers.channels import ChannelsObserver
from fxquant.numerics.observers.custom import CustomObserver
from fxquant.numerics.observers.histogram import HistogramObserver, Search
from fxquant.numerics.observers.method import Method, WeightRange
from fxquant.numerics.observers.minmax import FixedObserver, MinMaxObserver, MovingAverageObserver, given_range
from fxquant.numerics.observers.search_entropy import entropy_range
from fxquant.numerics.observers.search_mse import least_squares, mse_range
from fxquant.numerics.observers.search_percentile import percentile_of_rows, percentile_range

__all__ = ["OBSERVERS", "Observer", "keep_average", "keep_extremes", "keep_histogram", "make_observer"]


def keep_extremes(spec: Spec) -> Spec:
    """Calibration keeps the extremes."""
    return Spec(observer="minmax", **_shape(spec))


def keep_average(spec: Spec) -> Spec:
    """Calibration keeps their average, by its momentum."""
    return Spec(observer="moving_average", momentum=spec.momentum, **_shape(spec))


def keep_histogram(spec: Spec) -> Spec:
    """Calibration keeps a histogram, which has the extremes as well."""
    return Spec(observer="histogram") if spec.granularity == "per_tensor" else keep_extremes(spec)


def keep_channels(spec: Spec) -> Spec:
    """Calibration keeps a histogram, and extremes and power by channel."""
    return Spec(observer="channels", **_shape(spec))


class _Shape(TypedDict, total=False):
    granularity: Granularity
    axis: int
    group_size: int | None


def _shape(spec: Spec) -> _Shape:
    """Tell how many ranges a tensor has."""
    if spec.granularity == "per_tensor":
        return {}
    return {"granularity": spec.granularity, "axis": spec.axis, "group_size": spec.group_size}


def by_search(search: Search, weight: WeightRange) -> Method:
    """Return a method that looks for the range in a histogram."""

    def observer(spec: Spec, name: str) -> Observer:
        if spec.learn == "ste":
            return MovingAverageObserver(spec, name)
        return HistogramObserver(spec, name, search) if spec.granularity == "per_tensor" else MinMaxObserver(spec, name)

    return Method(observer=observer, kept=keep_histogram, weight=weight)


OBSERVERS: Mapping[ObserverKind, Method] = {
    "minmax": Method(observer=MinMaxObserver, kept=keep_extremes),
    "moving_average": Method(observer=MovingAverageObserver, kept=keep_average),
    "histogram": by_search(mse_range, weight=least_squares),
    "percentile": by_search(percentile_range, weight=percentile_of_rows),
    # of a weight by squares: a KL clip has no meaning on the few values of a channel
    "entropy": by_search(entropy_range, weight=least_squares),
    "channels": Method(observer=ChannelsObserver, kept=keep_channels),
    "fixed": Method(observer=FixedObserver, kept=lambda spec: None, weight=given_range),
    "custom": Method(observer=CustomObserver, kept=lambda spec: spec),
}


def make_observer(spec: Spec, name: str) -> Observer:
    """Return a fresh observer for the tensor called `name`."""
    if spec.dynamic:
        raise ConfigError(
            f"tensor {name!r} ({spec}): a dynamic range is found at run time; there is nothing to observe."
        )
    return OBSERVERS[spec.observer].observer(spec, name)
