"""A histogram on a grid that can always be merged.

Bin i covers [(origin + i) w, (origin + i + 1) w) with w = 2^exponent. Since floor(x / 2w) = floor(floor(x / w) / 2),
two histograms meet exactly on the coarser of their grids. The grid is a function of the extremes (0 included): the
smallest exponent for which they fit into BINS bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 2048
# Finest bins: 2^-100 keeps the multiplication by 1 / w inside float32.
MIN_EXPONENT = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """A finished histogram, on the host in float64: what the range searches read. Zeros are counted apart."""

    edges: Tensor
    counts: Tensor
    zeros: float
    low: float
    high: float


def grid_for(low: float, high: float) -> tuple[int, int]:
    """(exponent, origin) of the finest grid whose BINS bins hold low, high and 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    exponent = MIN_EXPONENT
    if high > low:
        exponent = max(exponent, math.frexp((high - low) / BINS)[1] - 1)
    while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= BINS:
        exponent += 1
    return exponent, math.floor(math.ldexp(low, -exponent))


def regrid(counts: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Counts moved onto a grid that is as coarse or coarser and covers them."""
    (old_exponent, old_origin), (new_exponent, new_origin) = old.tolist(), new.tolist()
    shift = min(new_exponent - old_exponent, 62)
    bins = torch.arange(BINS, device=counts.device) + old_origin
    # Bins that fall off the end are empty: the new grid holds every value seen.
    target = ((bins >> shift) - new_origin).clamp_(0, BINS - 1)
    moved = torch.zeros_like(counts)
    moved.index_add_(0, target, counts[:BINS])
    moved[BINS] = counts[BINS]
    return moved
