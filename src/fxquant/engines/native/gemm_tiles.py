"""Which tiles a matrix product is computed in (gemm.py): by a model of the cycles that they take."""

from __future__ import annotations

import functools

from fxquant.engines.native.machine import Machine

_PACKING = {1: 1.9, 2: 1.6, 3: 1.7, 4: 1.4}  # cycles for a vector of sums, with so many to a block
_DOT, _LATENCY, _LOAD, _FAR, _TILE = 0.5, 5.0, 0.5, 2.0, 12.0  # cycles; `_FAR`: of a load from the second cache
_SHORT = 32  # steps of sums behind which an eager CPU works ahead into the next tile
_EAGER = {1: 2.1, 2: 1.5, 3: 1.65, 4: 1.0}  # then: cycles for a vector of sums, beyond the products
_SUM, _SHORT_TILE = 0.03, 6.0  # and for each sum that a tile has besides, and for the tile
_FEW = 48  # channels, below which a vector that is half empty counts
_FIRST_CACHE = 40000  # bytes of a block's weights that stay there


@functools.lru_cache(maxsize=1024)
def choose_tile(
    outputs: int,
    rows: int,
    width: int,
    steps: int,
    extra: float,
    machine: Machine,
    widest: int = 4,
    narrow: bool = False,
    shared: bool = False,
) -> tuple[tuple[int, ...], int]:
    """(vectors of each block, at most `widest`, and pixels of a tile) by a model of the cycles that all tiles take.

    `outputs` are channels, a multiple of 16; `steps` those of a sum; `extra` cycles that a vector of results takes
    beyond packing. With `narrow`, there is a last block of one vector of half the width, for half of 16 channels; with
    `shared`, two pixels share the last vector of the only block.
    """
    total = outputs // machine.floats - narrow
    grain = 16 // machine.floats if machine.floats < 16 else 1
    best: tuple[float, int, int] | None = None
    for vectors in (total,) if shared else (4, 3, 2, 1):
        if vectors > min(total, widest) or vectors % grain:
            continue
        for most in range(1 + shared, machine.most_rows(vectors) + 1):
            cost = 0.0
            for v, blocks in ((vectors, total // vectors), (total % vectors, 1)):
                if v:
                    tiles = _tiles(rows, width, min(most, machine.most_rows(v)))
                    cost += blocks * sum(count * _cycles(p, v, steps, extra, machine) for p, count in tiles)
                    cost -= sum(count * (p // 2) * steps * _DOT for p, count in tiles) if shared else 0.0
            if narrow:
                tiles = _tiles(rows, width, min(most, machine.most_rows(1)))
                cost += sum(count * _narrow_cycles(p, steps, extra) for p, count in tiles)
            if best is None or cost < best[0]:
                best = (cost, vectors, most)
    assert best is not None
    _, vectors, most = best
    last = (total % vectors,) if total % vectors else ()
    return (*(vectors,) * (total // vectors), *last, *(1,) * narrow), most


def lines_of(rows: int, width: int, most: int) -> int:
    """Tell how many lines of so many pixels a tile of at most `most` of them has: more than one if they are short."""
    return min(rows, max(1, most // width))


def _tiles(rows: int, width: int, most: int) -> list[tuple[int, int]]:
    """(pixels, how often) of all tiles of an output."""
    lines = lines_of(rows, width, most)
    if lines > 1:
        return [(lines * width, rows // lines), (rows % lines * width, 1)]
    pixels, count, rest = split_row(width, most)
    return [(pixels, rows * count), (rest, rows)]


def _cycles(pixels: int, vectors: int, steps: int, extra: float, machine: Machine) -> float:
    """Return about how long a tile takes."""
    if not pixels:
        return 0.0
    if machine.eager and steps <= _SHORT:
        sums = pixels * vectors
        loads = pixels * _LOAD + vectors * 2 * _LOAD
        together = 4 if vectors % 2 else 4 // min(vectors, 4)  # pixels that are packed to bytes at once
        packed = -(-pixels // together) * together * vectors
        finish = packed * (_EAGER[vectors] + _SUM * sums + extra)
        products = sums * (2 * _DOT if machine.halved else _DOT)
        return steps * max(products, loads, _LATENCY) + finish + _SHORT_TILE
    products = pixels * vectors * (2 * _DOT if machine.dot in ("madd", "maddubs") else _DOT)
    far = steps * vectors * machine.width > _FIRST_CACHE
    loads = max((pixels + vectors) * _LOAD, vectors * _FAR if far else 0.0)
    finish = pixels * vectors * (_PACKING[vectors] + extra)
    return steps * max(products, loads, _LATENCY) + finish + _TILE


def takes_narrow(outputs: int, machine: Machine) -> bool:
    """Tell whether a block of half vectors is worth it for what is beyond 16 channels.

    It is where they take half the time; the fewer whole vectors there are, the more.
    """
    return machine.halved and 16 < outputs < _FEW and 1 <= outputs % 16 <= 8


def takes_shared(outputs: int, machine: Machine) -> bool:
    """Tell whether two pixels are to share the vector that is half full, beside one or two full ones."""
    return machine.blends and machine.width == 64 and 16 < outputs < _FEW and 1 <= outputs % 16 <= 8


def _narrow_cycles(pixels: int, steps: int, extra: float) -> float:
    """Return about how long a tile of one vector of half the width takes."""
    if not pixels:
        return 0.0
    finish = -(-pixels // 4) * 4 * (_EAGER[1] + extra) / 2
    return steps * max(pixels * _LOAD, _LATENCY) + finish + _SHORT_TILE


@functools.lru_cache(maxsize=4096)
def split_row(width: int, most: int) -> tuple[int, int, int]:
    """(pixels of a tile, how many such tiles, pixels of the one that is left) for a row."""
    if width <= most:
        return width, 1, 0
    best: tuple[float, int, int, int] | None = None
    for pixels in range(most, max(1, most // 2) - 1, -1):
        count, rest = divmod(width, pixels)
        cost = count * max(pixels, (pixels + 2) * 0.6) + (max(rest, 3.5) + 0.8 if rest else 0)
        cost += (count + bool(rest)) * 0.35
        if best is None or cost < best[0] - 1e-9:
            best = (cost, pixels, count, rest)
    assert best is not None
    return best[1:]


def even_parts(total: int, most: int) -> tuple[int, int, int]:
    """(size, how many of that size, how many one smaller): parts of nearly equal size, none above `most`."""
    count = -(-total // most)
    small, larger = divmod(total, count)
    return (small + 1, larger, count - larger) if larger else (small, count, 0)
