"""TQT has scales that are powers of two."""

from __future__ import annotations

from fxquant.config.spec import Spec
from fxquant.numerics.learned.table import RANGES


def test_tqt_means_powers_of_two() -> None:
    assert Spec(learn="tqt").scale == "pow2" and "log2_threshold" in RANGES
