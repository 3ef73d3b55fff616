"""Which bytes of the input are multiplied together where two products have to fit int16.

`maddubs` adds the products of two neighbouring bytes in int16. With weights of all 8 bits some pairs do not fit: both
weights large and of one sign. Which bytes are neighbours is free, though, if they are shuffled first. So the bytes of a
run are looked at in windows of 16, and those of a window are paired such that every pair fits in each channel of a
block; a byte that finds no partner is alone in its pair, beside a zero. Two pairs of a window are one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 16
NONE = 128  # the place of no byte: a shuffle gives zero for it
_MOST = 2**15 - 1
_FAR = 99  # more partners than a byte can have


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Which window each step is of, in order, and the places of its four bytes in there."""

    window: NDArray[np.int64]  # [steps]
    places: NDArray[np.uint8]  # [steps, 4]


def find_steps(weights: NDArray[np.int8], most: int) -> Steps:
    """Return the steps for weights [16, channels, windows] and inputs up to `most`; bytes without weights have none."""
    first, second, count = _pair(_partners(weights, most), (weights != 0).any(1).T)
    steps = (count + 1) // 2
    window = np.repeat(np.arange(len(count)), steps)
    turn = np.arange(len(window)) - np.repeat(np.cumsum(steps) - steps, steps)
    rows = window[:, None], 2 * turn[:, None] + np.arange(2)
    return Steps(window=window, places=np.stack((first[rows], second[rows]), -1).reshape(-1, 4))


def _partners(weights: NDArray[np.int8], most: int) -> NDArray[np.bool_]:
    """[windows, 16, 16]: whether the products of two bytes fit together, in all channels."""
    dtype = np.uint8 if weights.min(initial=0) > -128 else np.uint16  # that holds the sum of two
    sides = [np.maximum(side, 0).astype(dtype) for side in (weights, np.negative(weights, dtype=np.int16))]
    fits = np.zeros((weights.shape[2], WINDOW, WINDOW), np.bool_)
    for a in range(WINDOW):
        for b in range(a):
            sums = [(side[a] + side[b]).max(0, initial=0) for side in sides]
            fits[:, a, b] = fits[:, b, a] = np.maximum(*sums) <= _MOST // most
    return fits


def _pair(
    fits: NDArray[np.bool_], used: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]:
    """(first, second, how many) of the pairs of each window. The byte with the fewest partners left chooses first."""
    fits &= used[:, :, None] & used[:, None, :]
    free = used.copy()
    partners = fits.sum(2, dtype=np.uint8)
    windows = np.arange(len(used))
    first, second = (np.full((len(used), WINDOW + 1), NONE, np.uint8) for _ in range(2))
    count = np.zeros(len(used), np.int64)
    for _ in range(WINDOW // 2):
        a = np.where(free & (partners > 0), partners, _FAR).argmin(1)
        choice = fits[windows, a] & free
        b = np.where(choice, partners, _FAR).argmin(1)
        rows = (choice[windows, b] & free[windows, a]).nonzero()[0]
        a, b = a[rows], b[rows]
        first[rows, count[rows]], second[rows, count[rows]] = a, b
        count[rows] += 1
        free[rows, a] = free[rows, b] = False
        partners[rows] -= fits[rows, a].astype(np.uint8) + fits[rows, b].astype(np.uint8)
    for place in range(WINDOW):
        rows = free[:, place].nonzero()[0]
        first[rows, count[rows]] = place
        count[rows] += 1
    return first, second, count
