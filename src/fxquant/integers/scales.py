"""Ratios of scales as whole numbers: exact where they are simple, else M * 2^-n with 31 bits.

exact     ratio = multiplier / (divisor * 2^shift)     powers of two; the counts of an average
nearest   ratio ~ multiplier * 2^-shift                2^30 <= multiplier < 2^31
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from fxquant.integers.program import Scales

_SIMPLE = 1 << 16  # a multiplier or divisor that is part of the ratio itself, and not digits of a float
_BITS = 31  # of a multiplier
_MOST_SHIFT = 61  # twice a remainder is to fit in an int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """What to multiply by: one number for all, or one for each channel."""

    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    divisor: int
    exact: bool

    @property
    def is_one(self) -> bool:
        return self.exact and self.divisor == 1 and set(self.multiplier) == {1} and set(self.shift) == {0}


def ratio_of(scales: Scales, to: Fraction, bound: int = 1) -> Ratio:
    """scales / to, with as many bits as a product with `bound` leaves room for."""
    ratios = [scale / to for scale in scales]
    simple = [_simple(ratio) for ratio in ratios]
    divisors = {found[2] for found in simple if found is not None}
    if None not in simple and len(divisors) == 1:
        found = [each for each in simple if each is not None]
        first, second = tuple(each[0] for each in found), tuple(each[1] for each in found)
        return Ratio(multiplier=first, shift=second, divisor=divisors.pop(), exact=True)
    bits = min(_BITS, _MOST_SHIFT - bound.bit_length())
    near = [nearest(ratio, bits) for ratio in ratios]
    return Ratio(multiplier=tuple(m for m, _ in near), shift=tuple(n for _, n in near), divisor=1, exact=False)


def _simple(ratio: Fraction) -> tuple[int, int, int] | None:
    """(multiplier, shift, divisor), the last two odd; None if a number is not small."""
    above, left = _odd(ratio.numerator)
    below, right = _odd(ratio.denominator)
    fits = above < _SIMPLE and below < _SIMPLE and _MOST_SHIFT - below.bit_length() >= right - left >= -_BITS
    return (above, right - left, below) if fits else None


def _odd(number: int) -> tuple[int, int]:
    """(odd part, exponent of two)."""
    places = (number & -number).bit_length() - 1
    return number >> places, places


def nearest(ratio: Fraction, bits: int = _BITS) -> tuple[int, int]:
    """(M, n): the fraction M * 2^-n of that many bits which is nearest. Beyond 61 places nothing is left of a sum."""
    places = bits - (ratio.numerator.bit_length() - ratio.denominator.bit_length())
    multiplier = round(ratio * Fraction(2) ** places)
    while multiplier >= 1 << bits:
        places -= 1
        multiplier = round(ratio * Fraction(2) ** places)
    if places > _MOST_SHIFT:
        multiplier, places = round(ratio * Fraction(2) ** _MOST_SHIFT), _MOST_SHIFT
    return multiplier, places


def position_of(scale: Fraction) -> int | None:
    """p where a scale is 2^-p."""
    above, left = _odd(scale.numerator)
    below, right = _odd(scale.denominator)
    return right - left if above == below == 1 else None


def places_of(value: Fraction) -> int:
    """Tell how many binary places a float has behind the point; 0 for whole numbers."""
    return value.denominator.bit_length() - 1
