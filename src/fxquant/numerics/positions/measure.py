"""The measures of config/limits.py, on numbers or on arrays that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fxquant.config.limits import Measure

Value: TypeAlias = int | NDArray[np.int64] | NDArray[np.floating[Any]]  # a position, or arrays of them that broadcast


def terms(measure: Measure) -> str:
    """Which positions a measure is of: letters of "iowb"."""
    return _TERMS[measure]


_TERMS: dict[Measure, str] = {
    "cut": "iow",
    "bias": "iwb",
    "bias_to_output": "ob",
    "spread": "i",
    "sum": "io",
    "product": "io",
    "input": "i",
    "output": "o",
    "move": "io",
}


def measured(measure: Measure, i: Sequence[Value], o: Value, w: Value, b: Value) -> Value:
    """Return the value of a measure. Weighted kernels and unary ops have one input."""
    if measure == "cut":
        return w + i[0] - o
    if measure == "bias":
        return w + i[0] - b
    if measure == "bias_to_output":
        return o - b
    if measure == "spread":
        return _largest(i) - _least(i)
    if measure == "sum":
        return _least(i) - o
    if measure == "product":
        return sum(i) - o
    if measure == "output":
        return o
    return i[0] if measure == "input" else i[0] - o


def _largest(values: Sequence[Value]) -> Value:
    found: Value = reduce(np.maximum, values)
    return found


def _least(values: Sequence[Value]) -> Value:
    found: Value = reduce(np.minimum, values)
    return found
