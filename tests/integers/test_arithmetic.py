"""Division, float32 and multipliers in whole numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fxquant as fq
from fxquant.integers.arithmetic import divide, keep_mantissa
from fxquant.integers.scales import nearest
from zoo import ZOO


def converted(model: nn.Module, x: torch.Tensor, target: str) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    with torch.no_grad():
        prepared(x)
    return fq.convert_to_reference_fx(prepared)


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    return converted(ZOO["plain"].build(), x, "npu"), x


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**20))
def test_rounded_division(value: int, divisor: int) -> None:
    exact = Fraction(value, divisor)
    values, divisors = np.array([value]), np.array([divisor])
    assert divide(values, divisors, "half_even")[0] == round(exact)
    assert divide(values, divisors, "half_up")[0] == (exact + Fraction(1, 2)) // 1
    assert divide(values, divisors, "floor")[0] == exact // 1


@given(st.integers(-(2**52), 2**52))
def test_what_float32_keeps(value: int) -> None:
    assert keep_mantissa(np.array([value]))[0] == int(np.float32(value))


@given(st.fractions(Fraction(1, 2**20), 2**10))
def test_multipliers_have_31_bits(ratio: Fraction) -> None:
    multiplier, shift = nearest(ratio)
    assert 2**30 <= multiplier < 2**31
    assert abs(multiplier - ratio * Fraction(2) ** shift) <= Fraction(1, 2)
