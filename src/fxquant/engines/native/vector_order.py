"""The order of channels in vectors, and of weights in memory.

Four int32 vectors are packed to bytes inside lanes of 16 bytes (that is what x86 has), so vector v, lane l, element j
of a group of V vectors holds channel

    V = 4: 16 l + 4 v + j        V = 2: 8 l + 4 v + j        V = 1: 4 l + j

Weights, scales and biases are laid out in that order, and packing restores the natural one.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.machine import Machine


def parts(vectors: int) -> list[int]:
    """Tell how many vectors are packed to bytes together."""
    return [4] * (vectors // 4) + [2] * (vectors % 4 // 2) + [1] * (vectors % 2)


@functools.cache
def order(vectors: int, width: int, turns: bool = False) -> NDArray[np.int64]:
    """Return the channel that each element of a group of vectors holds, in the order of vectors and elements.

    With `turns`, two vectors that are packed together hold channels in turns.
    """
    found: list[int] = []
    first = 0
    for part in parts(vectors):
        for v in range(part):
            start, step = (8 * (v // 2) + v % 2, 2) if turns and part > 1 else (4 * v, 1)
            found += [first + 4 * part * lane + start + step * j for lane in range(width // 16) for j in range(4)]
        first += part * width // 4
    return np.array(found)


def pack_quads(quads: NDArray[np.int8], machine: Machine) -> NDArray[np.uint8]:
    """Weights [..., elements of a vector, 4 neighbours] as `Kernel.weights` loads them, flat."""
    if machine.dot != "madd":
        return np.ascontiguousarray(quads).reshape(-1).view(np.uint8)
    pairs = np.stack((quads[..., 0::2], quads[..., 1::2]), axis=-3).astype(np.int16)
    return np.ascontiguousarray(pairs).reshape(-1).view(np.uint8)
