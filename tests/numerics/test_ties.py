"""Ratios of scales that keep sums of integers away from ties."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.numerics.ties import LARGEST, are_clear, clear_ratios, clear_together


@pytest.mark.parametrize(("base", "most"), [(1, 2e-3), (9, 5e-3), (63, 2e-2)])
def test_ratios_become_fractions_with_odd_denominators(base: int, most: float) -> None:
    ratios = 10 ** (-4 * torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    found = clear_ratios(ratios, base)
    assert float((found / ratios - 1).abs().max()) <= most
    for each in found.tolist():
        b = Fraction(each).limit_denominator(2 * 10**4).denominator
        assert b % 2 == 1 and (b <= (LARGEST if base == 1 else 8191) or each < 1 / LARGEST)


def test_no_sum_is_near_a_tie() -> None:
    sums = torch.arange(-200_000, 200_000, dtype=torch.float64)
    for ratio in clear_ratios(torch.tensor([0.5, 0.1, 1 / 64, 1e-3, 3.1e-4])).tolist():
        off = sums * ratio
        assert float((off - off.floor() - 0.5).abs().min()) > 1e-4


def test_it_is_seen_whether_ratios_are_clear() -> None:
    ratios = 10 ** (-3 * torch.rand(64, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert are_clear(clear_ratios(ratios).float())
    assert not are_clear(ratios)
    assert not are_clear(torch.tensor([1e-9]))  # nothing is known


@settings(max_examples=30)
@given(st.lists(st.floats(1e-3, 2e-2), min_size=2, max_size=6))
def test_connected_scales_have_one_numerator(scales: list[float]) -> None:
    sums = [[at, at + 1] for at in range(len(scales) - 1)]
    found = clear_together(scales, [False] * len(scales), sums)
    if found is not None:
        common, steps = found
        assert all(p % 2 == 1 and abs(common / p / scale - 1) <= 0.0205 for p, scale in zip(steps, scales, strict=True))
        assert all(math.lcm(*(steps[at] for at in each)) <= 8191 for each in sums)


def test_scales_of_usual_sizes_find_one_and_fixed_ones_stay() -> None:
    scales = [0.1, 0.08, 0.11, 0.03, 0.05]
    assert clear_together(scales, [False] * 5, [[0, 3], [1, 4]]) is not None
    found = clear_together(scales, [True, *[False] * 4], [[0, 3], [1, 4]])
    assert found is not None and found[0] / found[1][0] == pytest.approx(0.1, rel=1e-9)
    assert clear_together([0.1, 0.0423], [True, True], [[0, 1]]) is None
