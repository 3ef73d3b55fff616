"""The measures of config/limits.py, on numbers or on arrays that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from fxquant.config.limits import Measure


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


def measured(measure: Measure, i: Sequence[Any], o: Any = 0, w: Any = 0, b: Any = 0) -> Any:
    """The value of a measure. Weighted kernels and unary ops have one input."""
    if measure == "cut":
        return w + i[0] - o
    if measure == "bias":
        return w + i[0] - b
    if measure == "bias_to_output":
        return o - b
    if measure == "spread":
        return reduce(np.maximum, i) - reduce(np.minimum, i)
    if measure == "sum":
        return reduce(np.minimum, i) - o
    if measure == "product":
        return sum(i) - o
    if measure == "output":
        return o
    return i[0] if measure == "input" else i[0] - o
