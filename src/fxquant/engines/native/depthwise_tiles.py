"""Tiles of a depthwise convolution whose quads of pixels serve all outputs that have a tap in them.

A quad is four pixels: of a row, of two rows or of one column, as the kernel's width wants it. The sums of an output
leave the registers with the last quad that has a tap of it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fxquant.engines.native.depthwise_load import Loader
from fxquant.engines.native.depthwise_shape import Depthwise, Point, Variant
from fxquant.engines.native.finish import Places, finish, load_affine, load_starts
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_MOST, _LIVE = 8, 7  # outputs of a tile; of those, how many have their sums in registers
_TILE = 6.0  # cycles
_ODD = ((3,), (2, 1))  # how three columns are taken


@functools.lru_cache(maxsize=1024)
def choose_tile(kernel: Point, stride: Point, rows: int, width: int, machine: Machine) -> Point:
    """Outputs that are computed together: more of them share what is loaded, too many run out of registers."""
    if machine.registers < 32:
        y, x = (1, 2) if stride[1] == 1 else (2, 1)
        return min(y, rows), min(x, width)
    tiles = [(y, x) for x in (1, 2) for y in range(1, min(rows, _MOST // x) + 1) if x <= width]
    return min(tiles, key=lambda tile: _cycles(kernel, stride, tile) * -(-rows // tile[0]) * -(-width // tile[1]))


def _cycles(kernel: Point, stride: Point, tile: Point) -> float:
    """Return about how long a tile takes."""
    found = schedule_of(kernel, stride, tile)
    return math.inf if found.live > _LIVE else found.cycles + _TILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Quads of pixels, for each the outputs that use it with the number of a variant, and the variants."""

    quads: list[list[Point | None]]
    uses: list[list[tuple[int, int]]]
    variants: list[Variant]

    @property
    def last(self) -> dict[int, int]:
        """The quad after which each output is done."""
        return {output: index for index, uses in enumerate(self.uses) for output, _ in uses}

    @property
    def live(self) -> int:
        """How many outputs have sums at the same time."""
        last, first = self.last, dict[int, int]()
        for index, uses in enumerate(self.uses):
            for output, _ in uses:
                first.setdefault(output, index)
        return max(sum(first[each] <= index <= last[each] for each in last) for index in range(len(self.quads)))

    @property
    def cycles(self) -> float:
        """About how long it takes: two instructions at a time, of which one may be a shuffle."""
        ends = 4 * len(self.last)
        shuffles = 8 * sum(map(bool, self.uses)) + ends
        return max(shuffles, (shuffles + 4 * sum(map(len, self.uses)) + ends) / 2)


@functools.lru_cache(maxsize=256)
def schedule_of(kernel: Point, stride: Point, tile: Point) -> Schedule:
    """Return the best schedule of a tile."""
    rows, columns = ((tile[i] - 1) * stride[i] + kernel[i] for i in range(2))
    return min((_uses(kernel, stride, tile, _quads(rows, columns, odd)) for odd in _ODD), key=lambda each: each.cycles)


def _uses(kernel: Point, stride: Point, tile: Point, quads: list[list[Point | None]]) -> Schedule:
    (sy, sx), (ty, tx) = stride, tile
    variants: list[Variant] = []
    uses = []
    for quad in quads:
        found = []
        for output in range(ty * tx):
            y, x = divmod(output, tx)
            taps = tuple(_tap(pixel, y * sy, x * sx, kernel) for pixel in quad)
            if any(tap is not None for tap in taps):
                if taps not in variants:
                    variants.append(taps)
                found.append((output, variants.index(taps)))
        uses.append(found)
    return Schedule(quads=quads, uses=uses, variants=variants)


def _tap(pixel: Point | None, y: int, x: int, kernel: Point) -> Point | None:
    if pixel is None:
        return None
    tap = (pixel[0] - y, pixel[1] - x)
    return tap if 0 <= tap[0] < kernel[0] and 0 <= tap[1] < kernel[1] else None


def _quads(rows: int, columns: int, odd: tuple[int, ...]) -> list[list[Point | None]]:
    """Four columns of a row; two of two rows, or one of four, where so many are left, and `odd` where three are."""
    left = {0: (), 1: (1,), 2: (2,), 3: odd}[columns % 4]
    found: list[tuple[int, list[Point | None]]] = []
    first = 0
    for width in (*(4,) * (columns // 4), *left):
        height = 4 // width
        for top in range(0, rows, height):
            places = [(top + y, first + x) for y in range(height) for x in range(width)]
            quad: list[Point | None] = [place if place[0] < rows else None for place in places]
            found.append((min(top + height, rows), quad + [None] * (4 - len(quad))))
        first += width
    return [quad for _, quad in sorted(found, key=lambda each: each[0])]


def emit_tile(
    k: Kernel,
    spec: Depthwise,
    bases: tuple[str, str, str],
    fixed: tuple[str, str],
    sizes: tuple[int, int],
) -> None:
    """Write a tile. `fixed`: the block's weights and numbers; `sizes`: its channels, and strips."""
    ty, tx = spec.tile
    schedule = schedule_of(spec.kernel, spec.stride, spec.tile)
    weights, params = fixed
    size = sizes[0] * sizes[1]
    weight_size = size * k.machine.weight_bytes
    sums = [load_starts(k, spec.finish, params, 4, size)] * (ty * tx)
    load = Loader(k, spec, bases[0], sizes)
    last = schedule.last
    for index, (quad, uses) in enumerate(zip(schedule.quads, schedule.uses, strict=True)):
        if not uses:
            continue
        used = [any(schedule.variants[variant][i] is not None for _, variant in uses) for i in range(4)]
        pixels = [pixel if needed else None for pixel, needed in zip(quad, used, strict=True)]

        def products(
            turn: str,
            kept: list[str],
            pixels: list[Point | None] = pixels,
            uses: list[tuple[int, int]] = uses,
        ) -> list[str]:
            vectors = load.quad(pixels)
            made = []
            for place, (_, variant) in enumerate(uses):
                for v in range(4):
                    weight = k.weights(k.at(weights, (variant * 4 + v) * weight_size), size)
                    made.append(k.dot(kept[4 * place + v], vectors[v], weight, size))
            return made

        type_ = f"<{size // 4} x i32>"
        carries = [Carry(type=type_, start=total) for output, _ in uses for total in sums[output]]
        made = k.loop(0, 1, 1, products, carries, apart=True)
        for place, (output, _) in enumerate(uses):
            sums[output] = made[4 * place : 4 * place + 4]
        done = [output for output, _ in uses if last[output] == index]
        # at once: their sums leave the registers, and outputs share scales and biases where there are enough of those
        groups = [done] if k.machine.registers >= 32 else [[output] for output in done]
        for group in filter(None, groups):
            _finish(k, spec, bases, params, {output: sums[output] for output in group}, sizes)


def _finish(
    k: Kernel,
    spec: Depthwise,
    bases: tuple[str, str, str],
    params: str,
    done: dict[int, list[str]],
    sizes: tuple[int, int],
) -> None:
    """Write some outputs of a tile, from their sums."""
    (channels, strips), tx = sizes, spec.tile[1]
    size, places = channels * strips, []
    for output in done:
        y, x = divmod(output, tx)
        out = k.at(bases[1], y * spec.out_row + x * spec.out_pixel)
        other = k.at(bases[2], y * spec.other_row + x * spec.other_pixel) if bases[2] else ""
        apart = tuple(k.at(out, strip * tx * spec.out_pixel) for strip in range(strips)) if strips > 1 else ()
        places.append(Places(header="%params", out=out, other=other, apart=apart))
    finish(k, spec.finish, [*done.values()], load_affine(k, params, 4, size), places, size)
