"""Activations on 16 bits: half as many vectors as floats take, for machines that look up 32 words at once.

The input is on a grid of its own, on which the part of the function that is not constant fills all int16:

    X = (x - centre) * factor, saturated    piece = X >> 11    u = its place in that piece, from -1 to 1
    q = (c0[piece] + u (c1[piece] + u c2[piece])) >> 7         in 1/128 of an output step, with half a step in c0

What lies beyond both ends is constant there, or beyond the output's grid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.activations import TABLE_BYTES, Act, formula
from fxquant.engines.native.vector import Kernel, indices

Array = NDArray[np.float64]
_PIECES, _SIZE, _FINE = 32, 2048, 128  # pieces, of so many words; parts of an output step
_CLOSE, _STRAIGHT = 0.12, 0.04  # steps that a table may be off, and that do not count


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Words:
    """The grid of the input, and the table as floats of the same bits, as a header has it."""

    centre: float
    factor: float
    table: NDArray[np.float32]


@functools.lru_cache(maxsize=512)
def fit_words(act: Act, scale: float, zero_point: int) -> Words | None:
    """Return the table for an output grid; None if so many quadratics are not close enough."""
    function = formula(act)

    def steps(x: Array) -> Array:
        made: Array = function(x) / scale + zero_point
        return made.clip(-0.49, 255.49)

    ends = _ends(steps)
    if ends is None:
        return None
    low, high = ends
    centre, factor = (low + high) / 2, 65535 / (high - low)
    starts = _SIZE * np.concatenate((np.arange(16), np.arange(-16, 0))).astype(np.float64)  # in the order of their bits
    u = np.cos(np.linspace(0, np.pi, 17))
    points = centre + (starts[:, None] + _SIZE / 2 * (1 + u)) / factor
    solve = np.linalg.pinv(np.stack((np.ones_like(u), u, u * u), axis=1))
    fine = _FINE * (solve @ steps(points.reshape(-1)).reshape(points.shape).T)
    fine[0] += _FINE / 2
    table = np.rint(fine).clip(-32768, 32767).astype(np.int16)
    if _error(table, steps, centre, factor) > _CLOSE:
        return None
    packed = np.zeros(TABLE_BYTES // 2, np.int16)
    packed[: table.size] = table.reshape(-1)
    return Words(centre=centre, factor=factor, table=packed.view(np.float32))


def _ends(steps: Callable[[Array], Array]) -> tuple[float, float] | None:
    """Return from where to where a function moves on its grid; None if it does so far from zero."""
    grid = np.linspace(-40.0, 40.0, 2001)
    y = steps(grid)
    if not np.isfinite(y).all():
        return None
    still = _STRAIGHT if abs(y[-1] - 255.49) > 0 else 0.0  # beyond the grid it does not count how far
    moved = np.flatnonzero((np.abs(y - y[0]) > _STRAIGHT) & (np.abs(y - y[-1]) > still))
    if not len(moved) or moved[0] == 0 or moved[-1] >= len(grid) - 2:
        return None
    low, inside, high = (float(grid[index]) for index in (moved[0] - 1, moved[-1], moved[-1] + 1))
    for _ in range(40):  # to where it reaches its last value, which it may do at an angle
        middle = (inside + high) / 2
        if abs(float(steps(np.array([middle]))[0]) - y[-1]) <= still:
            high = middle
        else:
            inside = middle
    return low, high


def _error(table: NDArray[np.int16], steps: Callable[[Array], Array], centre: float, factor: float) -> float:
    """Return how far off the output is at most, in steps, computed as the code does."""
    x = np.arange(-32768, 32768, 5)
    piece, u = (x >> 11) & 31, 32 * ((x & 2047) - 1024)
    c0, c1, c2 = table.astype(np.int64)[:, piece]

    def part(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        return (a * b + (1 << 14)) >> 15

    found = (c0 + part(u, c1 + part(u, c2))).clip(-32768, 32767)
    return float(np.abs((found - _FINE / 2) / _FINE - steps(centre + x / factor)).max())


def apply_words(k: Kernel, words: str, table: str, width: int) -> str:
    """Return the outputs for <width / 2 x i16> of inputs."""
    n = width // 2
    if n < _PIECES:  # a whole vector is looked up
        wide = [index % n for index in range(_PIECES)]
        words = k.value(f"shufflevector <{n} x i16> {words}, <{n} x i16> poison, {indices(wide)}")
    type_ = f"<{_PIECES} x i16>"
    piece = k.value(f"lshr {type_} {words}, splat (i16 11)")
    shifted = k.value(f"shl {type_} {words}, splat (i16 5)")
    u = k.value(f"xor {type_} {shifted}, splat (i16 -32768)")
    c0, c1, c2 = (
        k.call("llvm.x86.avx512.permvar.hi.512", k.load(type_, k.at(table, 64 * index), 64), piece)
        for index in range(3)
    )
    slope = k.value(f"add {type_} {c1}, {k.call('llvm.x86.avx512.pmul.hr.sw.512', u, c2)}")
    fine = k.call("llvm.sadd.sat.v32i16", c0, k.call("llvm.x86.avx512.pmul.hr.sw.512", u, slope))
    made = k.value(f"ashr {type_} {fine}, splat (i16 7)")
    if n < _PIECES:
        return k.value(f"shufflevector {type_} {made}, {type_} poison, {indices([*range(n)])}")
    return made
