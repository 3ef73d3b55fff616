"""The clip that loses the least information over a histogram, after TensorRT and MXNet.

For each threshold T the data are cut to [max(low, -T), min(high, T)]:

    P = the counts inside, with everything outside added to the edge bins
    Q = the counts inside, merged into the quantizer's levels and spread evenly over each level's non-empty bins
    T = argmin KL(P || Q) = sum P log(P / Q)        both normalized, both smoothed by a little mass on every bin

Zeros are left out, as they are exact in every quantizer. Grids of more than 10 bits have more levels than the histogram
has bins to tell apart: there nothing is gained by clipping and the exact extremes are the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.observers.bins import Histogram

THRESHOLDS = 96
SMOOTHING = 1e-4
MAX_BITS = 10


def entropy_range(histogram: Histogram, spec: Spec) -> tuple[float, float]:
    """(low, high), within the exact extremes."""
    low, high = histogram.low, histogram.high
    if low == high or spec.bits > MAX_BITS or not bool(histogram.counts.any()):
        return low, high
    # Below as many bins as levels, every bin would be a level of its own and KL is 0 for want of resolution.
    smallest = min((1 << spec.bits) / len(histogram.counts), 0.5)
    thresholds = torch.linspace(1.0, smallest, THRESHOLDS, dtype=torch.float64) * max(-low, high)
    lows, highs = torch.clamp(-thresholds, min=low), torch.clamp(thresholds, max=high)
    best = int(_divergence(histogram, lows, highs, spec).argmin())
    return float(lows[best]), float(highs[best])


def _divergence(histogram: Histogram, lows: Tensor, highs: Tensor, spec: Spec) -> Tensor:
    """KL(P || Q) for each candidate range."""
    centres = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    scale, zero_point = choose_qparams(lows, highs, spec)
    levels = (centres / scale.double().unsqueeze(1)).round_() + zero_point.unsqueeze(1)
    levels = (levels.clamp_(spec.quant_min, spec.quant_max) - spec.quant_min).long()

    # A range that ends inside a bin keeps that bin.
    kept = (histogram.edges[1:] > lows.unsqueeze(1)) & (histogram.edges[:-1] <= highs.unsqueeze(1))
    inside = histogram.counts * kept
    reference = inside.clone()
    bins = torch.arange(len(centres)).expand_as(kept)
    first = torch.where(kept, bins, len(centres)).amin(1, keepdim=True)
    last = torch.where(kept, bins, -1).amax(1, keepdim=True)
    reference.scatter_add_(1, first, (histogram.counts * (bins < first)).sum(1, keepdim=True))
    reference.scatter_add_(1, last, (histogram.counts * (bins > last)).sum(1, keepdim=True))

    filled = (reference > 0).double()
    shape = (len(lows), spec.quant_max - spec.quant_min + 1)
    mass = inside.new_zeros(shape).scatter_add_(1, levels, inside)
    spread = inside.new_zeros(shape).scatter_add_(1, levels, filled)
    merged = (mass / spread.clamp_min_(1.0)).gather(1, levels) * filled
    p, q = _smooth(reference, kept), _smooth(merged, kept)
    divergence = torch.where(kept, p * (p / q).log(), 0.0).sum(1)
    return divergence.masked_fill(inside.sum(1) == 0, torch.inf)


def _smooth(counts: Tensor, kept: Tensor) -> Tensor:
    """Probabilities with a little mass on every kept bin (1 elsewhere, to keep the logarithm finite)."""
    share = counts / counts.sum(1, keepdim=True).clamp_min(1e-300)
    bins = kept.sum(1, keepdim=True)
    smooth = share * (1.0 - SMOOTHING) + SMOOTHING / bins
    return torch.where(kept, smooth, 1.0)
