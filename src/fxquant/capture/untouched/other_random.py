"""The random numbers that Python's `random` and numpy's global generator give: what torch's seed does not reach.

A run starts them over, as it does torch's. A trace that draws from them would hold the numbers as they were, so the
states before and after tell whether code did.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

State: TypeAlias = tuple[object, tuple[Any, ...]]


def random_state() -> State:
    """Return the state of both generators."""
    numpy_state: Any = np.random.get_state(legacy=True)
    return random.getstate(), tuple(numpy_state)


def has_drawn(before: State) -> bool:
    """Tell whether numbers were drawn since."""
    python, (_, keys, position, has_gauss, _) = before
    now_python, (_, now_keys, now_position, now_has_gauss, _) = random_state()
    same = (position, has_gauss) == (now_position, now_has_gauss) and np.array_equal(keys, now_keys)
    return not same or python != now_python


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Let both go on where they were, whatever is drawn inside."""
    python, theirs = random.getstate(), np.random.get_state(legacy=True)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(theirs)


def start_over(number: int = 0) -> None:
    """Seed both generators with the same number as torch's."""
    random.seed(number)
    np.random.seed(number)
