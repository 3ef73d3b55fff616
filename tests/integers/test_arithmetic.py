"""Division, float32 and multipliers in whole numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fxquant.integers.arithmetic import divide, divide_mantissa, keep_mantissa
from fxquant.integers.scales import nearest


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


@given(st.integers(-(2**24), 2**24), st.integers(0, 16))
def test_quotients_of_float32(value: int, exponent: int) -> None:
    number = np.float32(value) * np.float32(2.0**exponent)
    quotient = divide_mantissa(np.array([int(number) << 20]), 6)[0]
    if abs(quotient) >= 2**25:
        assert quotient / 2**20 == float(number / np.float32(6))


@given(st.fractions(Fraction(1, 2**20), 2**10))
def test_multipliers_have_31_bits(ratio: Fraction) -> None:
    multiplier, shift = nearest(ratio)
    assert 2**30 <= multiplier < 2**31
    assert abs(multiplier - ratio * Fraction(2) ** shift) <= Fraction(1, 2)
