"""The range that minimizes the expected squared quantization error over a histogram.

With a uniform density inside each bin, the error of a quantizer with step s and levels bottom..top is exact:

    E = sum_i c_i (F(b_i+1) - F(b_i)) / w
    F(x) = r s^3 / 12 + (x - r s)^3 / 3        r = clamp(round(x / s), bottom, top)

F is the integral of (x - r s)^2 from 0 to x, clipping included ("floor" rounding has s^3 / 3 in the first term). So the
rounding error of coarse grids (2 bits), of fine ones (16 bits, several levels per bin) and clipping need no separate
models. Candidates are real ranges put through `choose_qparams`, so bits, symmetry and pow2 scales are respected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.observers.bins import Histogram
from fxquant.numerics.ranges import rows_like_scale

# Shares of the full range tried first; then twice a finer grid between the neighbours of the best.
COARSE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
POOL = 4
REFINEMENTS = 2
# Of ranges this close to the best, take the widest: unseen data reach further than calibration data.
TOLERANCE = 1.005


def mse_range(histogram: Histogram, spec: Spec) -> tuple[float, float]:
    """(low, high) inside the exact extremes; those themselves are always among the candidates."""
    low, high = histogram.low, histogram.high
    if low == high:
        return low, high
    coarse = histogram.counts.view(-1, POOL).sum(1)
    shares = torch.tensor(COARSE, dtype=torch.float64)
    # One clip for a symmetric spec; for an asymmetric one, one for each side that has data.
    sides = [spec.symmetric or low < 0, not spec.symmetric and high > 0]
    grids = [shares if side else shares[:1] for side in sides]
    best = _best_pair(histogram.edges[::POOL], coarse, grids, histogram, spec)[0]
    tried: list[tuple[Tensor, Tensor]] = []
    points = 25 if spec.symmetric else 7
    for _ in range(REFINEMENTS):
        grids = [_between(grid, at, points) for grid, at in zip(grids, best, strict=True)]
        best, pairs, errors = _best_pair(histogram.edges, histogram.counts, grids, histogram, spec)
        tried.append((pairs, errors))
    full = torch.tensor([[low, high]], dtype=torch.float64)
    tried.append((full, expected_error(histogram.edges, histogram.counts, full, spec)))
    all_pairs, all_errors = torch.cat([p for p, _ in tried]), torch.cat([e for _, e in tried])
    close = all_errors <= all_errors.min() * TOLERANCE
    widths = torch.where(close, all_pairs[:, 1] - all_pairs[:, 0], -1.0)
    chosen = all_pairs[int(widths.argmax())].tolist()
    return chosen[0], chosen[1]


def clipped_pairs(histogram: Histogram, spec: Spec, first: Tensor, second: Tensor) -> Tensor:
    """Candidate (low, high) rows: every share in `first` of the absmax, or all pairs (share of low, share of high)."""
    low, high = histogram.low, histogram.high
    if spec.symmetric:
        absmax = first * max(-low, high)
        return torch.stack((torch.clamp(-absmax, min=low), torch.clamp(absmax, max=high)), dim=1)
    return torch.cartesian_prod(first * low, second * high)


def expected_error(edges: Tensor, counts: Tensor, pairs: Tensor, spec: Spec) -> Tensor:
    """Sum of squared errors for each row (low, high) of `pairs`; see the module docstring."""
    scale, zero_point = choose_qparams(pairs[:, 0], pairs[:, 1], spec)
    step = scale.double().unsqueeze(1)
    bottom = (spec.quant_min - zero_point).double().unsqueeze(1)
    top = (spec.quant_max - zero_point).double().unsqueeze(1)
    # sum_i c_i (F_i+1 - F_i) = sum_j F_j (c_j-1 - c_j)
    density = counts / (edges[1] - edges[0])
    weight = torch.zeros_like(edges)
    weight[1:] += density
    weight[:-1] -= density
    counting = weight.nonzero().squeeze(1)  # F counts where the density changes: between empty bins, it does not
    edges, weight = edges[counting], weight[counting]
    ratio = edges * (1.0 / step)
    level = ratio.floor_() if spec.rounding == "floor" else ratio.round_()
    level = torch.minimum(torch.maximum(level, bottom), top, out=level)
    rest = torch.addcmul(edges, level, step, value=-1.0)
    per_level = 1.0 / 3.0 if spec.rounding == "floor" else 1.0 / 12.0
    return (level @ weight) * step.squeeze(1).pow(3) * per_level + (rest.square() * rest) @ weight / 3.0


def _best_pair(
    edges: Tensor, counts: Tensor, grids: list[Tensor], histogram: Histogram, spec: Spec
) -> tuple[list[int], Tensor, Tensor]:
    """Tell where on the grids the best pair is, with all pairs and their errors."""
    pairs = clipped_pairs(histogram, spec, grids[0], grids[1])
    errors = expected_error(edges, counts, pairs, spec)
    row, column = divmod(int(errors.argmin()), len(grids[1]))
    return [row, column], pairs, errors


def _between(grid: Tensor, at: int, points: int) -> Tensor:
    """Return a finer descending grid between the neighbours of grid[at]."""
    if len(grid) == 1:
        return grid
    upper, lower = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    return torch.lerp(upper, lower, torch.linspace(0.0, 1.0, points, dtype=torch.float64))


def least_squares(values: Tensor, low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Return the range of a weight.

    Low and high are scaled by the one ratio that is best on its own values, per channel.
    """
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    best_error = torch.full_like(low, torch.inf)
    best_ratio = torch.ones_like(low)
    ratios = _clip_ratios(spec.bits)
    shares = low.new_tensor(ratios).view(-1, *(1 for _ in low.shape))
    for ratio, scale, zero_point in zip(ratios, *choose_qparams(low * shares, high * shares, spec), strict=True):
        squared = (fake_quantize(values, scale, zero_point, spec) - values).square_()
        error = rows_like_scale(squared, spec).sum(-1)
        better = error < best_error  # ties keep the wider range: ratios descend
        best_error = torch.where(better, error, best_error)
        best_ratio = best_ratio.masked_fill(better, ratio)
    return low * best_ratio, high * best_ratio


def _clip_ratios(bits: int) -> list[float]:
    """Ratios from 1 down. Gaussian rows of 2304 values are best at 1.0 (8 bits), 0.66 (4 bits), 0.29 (2 bits)."""
    last, step = (0.1, 0.05) if bits <= 3 else (0.3, 0.05) if bits <= 5 else (0.5, 0.05)
    return [1.0 - step * i for i in range(round((1.0 - last) / step) + 1)]
