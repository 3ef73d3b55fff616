"""The measures on numbers, and on arrays that broadcast."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fxquant.config.limits import FORMULAS, Measure
from fxquant.numerics.positions.measure import measured, terms


@pytest.mark.parametrize("measure", get_args(Measure))
def test_a_measure_is_its_formula(measure: Measure) -> None:
    i, o, w, b = [5, 3], 2, 7, 11
    names = {"i": i if "(" in FORMULAS[measure] else i[0], "o": o, "w": w, "b": b}
    assert measured(measure, i, o, w, b) == eval(FORMULAS[measure], {"max": max, "min": min, "sum": sum}, names)
    assert set(terms(measure)) == set(FORMULAS[measure]) & set("iowb")


def test_arrays_broadcast() -> None:
    rows, columns = np.arange(3).reshape(-1, 1), np.arange(2).reshape(1, -1)
    assert np.array_equal(measured("spread", [rows, columns], 0, 0, 0), np.abs(rows - columns))
