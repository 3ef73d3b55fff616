"""Scales with which no sum of integers comes near the middle between two steps.

    y / s_y = sum * s_x s_w / s_y          a kernel rounds this to an integer; 0.5, 1.5, ... are ties

In float32 the product depends on the order in which it is computed, by some 1e-5 of a step, and beside a tie that
decides. If the ratio of the scales is a / b with an odd b, no sum * a / b is a tie: it is at least 1 / (2 b) from each.
So every order gives the same integer, while b is small beside 1e5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = 4095  # b: 1.2e-4 of a step from the next tie
_OF_SUMS = 8191  # the same for sums of few terms, which are nearer to exact
LEAST = 1e-5  # a ratio below it is that of a channel without weights
_ALIKE = 3e-7  # ratios of float32
_NEAR = 2e-3  # of a ratio: below it, a smaller b is worth more
_AT_ONCE = 64
MOST = 0.02  # that a scale may move
_CLOSE = 0.005  # and where nothing better is looked for: a small p leaves more to the rest
_STARTS = 240  # numbers of steps that are tried for the coarsest scale of some


def clear_ratios(ratios: Tensor, base: int = 1) -> Tensor:
    """Return a / b near each positive ratio, where b is an odd multiple of the odd number `base`.

    Of those with b up to LARGEST, or _OF_SUMS where there is a base, the first that is within _NEAR of the ratio, else
    the nearest; for ratios that are smaller than these, 1 / b.
    """
    most = LARGEST if base == 1 else _OF_SUMS
    ratios = ratios.double()
    flat = ratios.reshape(-1)
    best, error = torch.zeros_like(flat), torch.full_like(flat, math.inf)
    for first in range(1, most // base + 1, 2 * _AT_ONCE):
        left = (error > _NEAR).nonzero().flatten()
        if not len(left):
            break
        b = base * torch.arange(first, min(first + 2 * _AT_ONCE, most // base + 1), 2, dtype=torch.float64)
        wanted = flat[left, None]
        found = (wanted * b).round().clamp_min(1.0) / b
        apart = (found / wanted - 1).abs()
        near = apart <= _NEAR
        at = torch.where(near.any(1), near.int().argmax(1), apart.argmin(1))[:, None]
        better = apart.gather(1, at)[:, 0] < error[left]
        best[left[better]] = found.gather(1, at)[better, 0]
        error[left[better]] = apart.gather(1, at)[better, 0]
    small = base * (2 * ((1 / (flat * base) - 1) / 2).round().clamp_min(0.0) + 1)  # the b that is next to 1 / ratio
    return torch.where((flat * small - 1).abs() < error, 1 / small, best).reshape(ratios.shape)


def are_clear(ratios: Tensor) -> bool:
    """Tell whether all ratios are such fractions, but for what float32 cannot hold."""
    flat = ratios.double().reshape(-1)
    flat = flat[flat > LEAST]
    b = torch.arange(1, LARGEST + 1, 2, dtype=torch.float64)
    small = (2 * ((1 / flat - 1) / 2).round() + 1).unsqueeze(1)
    near = [((flat[:, None] * each).round().clamp_min(1.0) / each / flat[:, None] - 1).abs() for each in (b, small)]
    return bool(len(flat)) and bool((torch.cat(near, 1).amin(1) < _ALIKE).all())


def clear_together(
    scales: Sequence[float], fixed: Sequence[bool], sums: Sequence[Sequence[int]]
) -> tuple[float, list[int]] | None:
    """Return C and an odd p for each scale with C / p near it, so that ratios of two of them have odd denominators.

    `sums` are the places of scales that are rounded onto another one together: their p have a common multiple of at
    most _OF_SUMS. Those that are `fixed` have to be C / p as they are. None where nothing is near enough.
    """
    best: tuple[float, list[int]] | None = None
    least = MOST
    whole = max(range(len(scales)), key=lambda at: (fixed[at], scales[at]))
    for start in range(_STARTS):
        # a fixed scale has to be hit; of others, C goes through the range of its smallest p
        common = scales[whole] * (2 * start + 1 if any(fixed) else 3 + start / 4)
        steps = [_nearest_odd(common / scale) for scale in scales]
        off = [abs(p * scale / common - 1) for p, scale in zip(steps, scales, strict=True)]
        if any(is_fixed and each > 1e-7 for is_fixed, each in zip(fixed, off, strict=True)):
            continue
        if any(math.lcm(*(steps[at] for at in places)) > _OF_SUMS for places in sums):
            continue
        if max(off) < least:
            best, least = (common, steps), max(off)
        if least <= _CLOSE:
            break
    return best


def _nearest_odd(value: float) -> int:
    return max(1, 2 * round((value - 1) / 2) + 1)
