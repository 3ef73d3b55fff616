"""What a position costs a tensor: noise / power of its values at the scale 2^-p.

Activations have the histogram that calibration kept; where there is none, values spread evenly over the range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.histogram import HistogramObserver
from fxquant.numerics.observers.search_mse import expected_error


def scale_at(place: int) -> Tensor:
    """2^-p."""
    return torch.tensor(2.0).pow(-place)


def position_of(scale: Tensor) -> int:
    """Return p of a scale 2^-p."""
    return round(-float(scale.log2()))


def range_at(place: int, spec: Spec) -> tuple[float, float]:
    """Return the range for which a symmetric spec has the scale 2^-p."""
    end = spec.quant_max * float(scale_at(place))
    return -end, end


def activation_cost(quantizer: FakeQuant, place: int) -> float:
    """Return the expected noise of an activation, relative to its power."""
    edges, counts = _distribution(quantizer)
    pair = torch.tensor([range_at(place, quantizer.spec)], dtype=torch.float64)
    middle = (edges[1:].pow(3) - edges[:-1].pow(3)) / (edges[1:] - edges[:-1]) / 3.0
    power = float((counts * middle).sum())
    spec = quantizer.spec.stored().with_(learn=None, min_scale=0.0)
    return float(expected_error(edges, counts, pair, spec)[0]) / power if power > 0.0 else 0.0


def _distribution(quantizer: FakeQuant) -> tuple[Tensor, Tensor]:
    """(edges, counts) of what it saw; evenly over the grid that it has, if it kept no histogram."""
    observer = quantizer.observer
    if isinstance(observer, HistogramObserver) and observer.seen:
        found = observer.histogram()
        return found.edges, found.counts
    low, high = range_at(position_of(quantizer.scale), quantizer.spec)
    if observer is not None and observer.seen and quantizer.spec.learn is None:
        low, high = (float(end) for end in observer.range())
    low, high = min(low, 0.0), max(high, 0.0)
    return torch.tensor([low, max(high, low + 1e-30)], dtype=torch.float64), torch.ones(1, dtype=torch.float64)


def values_cost(values: Tensor, spec: Spec, place: int) -> float:
    """Return the noise of a weight or bias, relative to its power."""
    power = float(values.square().sum())
    zero = torch.tensor(0, dtype=torch.int32)
    rounded = fake_quantize(values, scale_at(place).to(values.device), zero, spec)
    return float((rounded - values).square().sum()) / power if power > 0.0 else 0.0
