"""The range that keeps a given percentage of the data of a histogram.

    symmetric     absmax = quantile(|x|, p)
    asymmetric    low = quantile(x, (1 - p) / 2), high = quantile(x, 1 - (1 - p) / 2): both tails lose the same share
    one-sided     the whole of 1 - p is cut on the only tail there is

Quantiles are interpolated inside bins and never leave the exact extremes; 100 gives those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.observers.bins import Histogram
from fxquant.numerics.ranges import rows_like_scale


def percentile_range(histogram: Histogram, spec: Spec) -> tuple[float, float]:
    """(low, high), within the exact extremes."""
    low, high = histogram.low, histogram.high
    tail = 1.0 - spec.percentile / 100.0
    if tail <= 0.0 or low == high:
        return low, high
    edges = histogram.edges
    counts = histogram.counts.clone()
    # Zeros belong to the bin that starts at 0.
    counts[int(torch.searchsorted(edges, 0.0, right=True)) - 1] += histogram.zeros
    two_sided = low < 0.0 < high
    if spec.symmetric and two_sided:
        absmax = _absolute_quantile(edges, counts, 1.0 - tail)
        return max(low, -absmax), min(high, absmax)
    cut = tail / 2 if two_sided else tail
    new_low = _quantile(edges, counts, cut) if low < 0.0 else low
    new_high = _quantile(edges, counts, 1.0 - cut) if high > 0.0 else high
    return min(max(low, new_low), 0.0), max(min(high, new_high), 0.0)


def _quantile(edges: Tensor, counts: Tensor, q: float) -> float:
    """Return the value below which a share q of the counts lies."""
    below = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    wanted = q * float(below[-1])
    i = min(max(int(torch.searchsorted(below, wanted)) - 1, 0), len(counts) - 1)
    inside = (wanted - float(below[i])) / max(float(counts[i]), 1.0)
    return float(torch.lerp(edges[i], edges[i + 1], inside))


def _absolute_quantile(edges: Tensor, counts: Tensor, q: float) -> float:
    """Return the quantile of |x|: the bins are aligned at 0, so the negative ones fold onto the positive ones."""
    width = float(edges[1] - edges[0])
    zero = round(-float(edges[0]) / width)
    positive, negative = counts[zero:], counts[:zero].flip(0)
    folded = counts.new_zeros(max(len(positive), len(negative)))
    folded[: len(positive)] += positive
    folded[: len(negative)] += negative
    return _quantile(torch.arange(len(folded) + 1, dtype=edges.dtype) * width, folded, q)


def percentile_of_rows(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Return the same of a weight: each channel (group, tensor) by itself, exact by sorting."""
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    rows = rows_like_scale(values, spec)
    tail = 1.0 - spec.percentile / 100.0
    if spec.symmetric:
        absmax = _sorted_quantile(rows.abs().sort(dim=-1).values, 1.0 - tail)
        return torch.maximum(low, -absmax), torch.minimum(high, absmax)
    rows = rows.sort(dim=-1).values
    two_sided = (low < 0) & (high > 0)
    half_low, half_high = _sorted_quantile(rows, tail / 2), _sorted_quantile(rows, 1.0 - tail / 2)
    new_low = torch.where(two_sided, half_low, _sorted_quantile(rows, tail))
    new_high = torch.where(two_sided, half_high, _sorted_quantile(rows, 1.0 - tail))
    return new_low.clamp(max=0.0), new_high.clamp(min=0.0)


def _sorted_quantile(rows: Tensor, q: float) -> Tensor:
    """Linear interpolation in sorted rows (torch.quantile refuses more than 16 million elements)."""
    at = q * (rows.shape[-1] - 1)
    below = int(at)
    above = min(below + 1, rows.shape[-1] - 1)
    return torch.lerp(rows[..., below], rows[..., above], at - below)
