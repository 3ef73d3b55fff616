"""Depthwise convolution on bytes with the channels last.

Four neighbouring pixels of the same channels, unpacked into one another, give vectors whose elements hold four taps of
a channel: what `dot` multiplies at once. Such a quad serves all outputs of a tile that have a tap in it, with weights
that are zero where they have none.

    weights   [block][variant][4 vectors][elements][4 taps]

Where a block has fewer channels than a vector has bytes, several tiles beside each other share it (`strips`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.finish import HEADER_BYTES, Finish, Places, affine_rows, finish, load_affine, load_starts
from fxquant.engines.native.gemm import LINE
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel, order, pack_quads

Point = tuple[int, int]
Variant = tuple[Point | None, ...]  # the tap that each of four pixels is
_MOST, _LIVE = 8, 7  # outputs of a tile; of those, how many have their sums in registers
_TILE = 6.0  # cycles
_ODD = ((3,), (2, 1))  # how three columns are taken
_CHUNK = 16  # columns that are done for all channels, where blocks of them share lines of memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Depthwise:
    """The shape of one kernel. Strides are in bytes, those of inputs from one pixel of the input to the next."""

    kernel: Point
    stride: Point
    channels: int  # a multiple of 16
    rows: int
    width: int
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    other_row: int = 0
    other_pixel: int = 0
    tile: Point  # outputs: rows, columns
    finish: Finish
    pairs: bool = False  # whether sums of two products fit int16


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
    schedule = _schedule(kernel, stride, tile)
    return math.inf if schedule.live > _LIVE else schedule.cycles + _TILE


def block_widths(channels: int, machine: Machine) -> list[int]:
    """Bytes of the vectors that the channels are done in."""
    found: list[int] = []
    for width in (64, 32, 16):
        if width <= machine.width:
            found += [width] * ((channels - sum(found)) // width)
    return found


def strips(spec: Depthwise, size: int, machine: Machine) -> int:
    """Tell how many tiles of a block of `size` channels share vectors."""
    count = 1 if spec.finish.other else machine.width // size
    while count > 1 and count * spec.tile[1] > spec.width:
        count //= 2
    return count


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schedule:
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
def _schedule(kernel: Point, stride: Point, tile: Point) -> _Schedule:
    """Return the best schedule of a tile."""
    rows, columns = ((tile[i] - 1) * stride[i] + kernel[i] for i in range(2))
    return min((_uses(kernel, stride, tile, _quads(rows, columns, odd)) for odd in _ODD), key=lambda each: each.cycles)


def _uses(kernel: Point, stride: Point, tile: Point, quads: list[list[Point | None]]) -> _Schedule:
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
    return _Schedule(quads=quads, uses=uses, variants=variants)


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


def emit(name: str, spec: Depthwise, machine: Machine) -> Kernel:
    """The kernel: `x`, packed `weights`, `params` (header, then each block's scales and biases), `out`, `other`."""
    k = Kernel(name, ("x", "weights", "params", "out", "other"), machine.for_pairs(spec.pairs))
    schedule = _schedule(spec.kernel, spec.stride, spec.tile)
    ty, _ = spec.tile

    def rows(y: str) -> None:
        if spec.rows % ty:
            y = k.call("llvm.smin.i64", y, str(spec.rows - ty))
        x = k.step("%x", y, spec.stride[0] * spec.in_row)
        out = k.step("%out", y, spec.out_row)
        other = k.step("%other", y, spec.other_row) if spec.finish.other else ""

        def chunk(low: str) -> None:
            high = k.call("llvm.smin.i64", k.add(low, _CHUNK), str(spec.width))
            _channels(k, spec, schedule, (x, out, other), (low, high))

        if spec.in_pixel % LINE and spec.channels > machine.width:
            k.each(0, spec.width, chunk, _CHUNK)
        else:
            _channels(k, spec, schedule, (x, out, other), ("0", str(spec.width)))

    k.each("%y0", "%y1", rows, ty)
    return k


def _channels(
    k: Kernel, spec: Depthwise, schedule: _Schedule, bases: tuple[str, str, str], columns: tuple[str, str]
) -> None:
    widths = block_widths(spec.channels, k.machine)
    done = weights_at = before = 0
    params_at = HEADER_BYTES
    out_bytes, other_bytes = spec.finish.out_bytes, 4 if spec.finish.other == "f32" else 1
    for size in dict.fromkeys(widths):
        count, shared = widths.count(size), strips(spec, size, k.machine)
        weight_size = len(schedule.variants) * 4 * size * shared * k.machine.weight_bytes
        param_size = 4 * spec.finish.rows * size * shared
        starts = (done, weights_at, params_at)

        def block(
            index: str,
            size: int = size,
            shared: int = shared,
            weight_size: int = weight_size,
            param_size: int = param_size,
            starts: tuple[int, int, int] = starts,
        ) -> None:
            x = k.step(k.at(bases[0], starts[0]), index, size)
            out = k.step(k.at(bases[1], starts[0] * out_bytes), index, size * out_bytes)
            other = k.step(k.at(bases[2], starts[0] * other_bytes), index, size * other_bytes) if bases[2] else ""
            weights = k.step(k.at("%weights", starts[1]), index, weight_size)
            params = k.step(k.at("%params", starts[2]), index, param_size)
            _columns(k, spec, schedule, (x, out, other), (weights, params), (size, shared), columns)

        first = k.call("llvm.smax.i64", k.add("%n0", -before), "0")
        last = k.call("llvm.smin.i64", k.add("%n1", -before), str(count))
        k.each(first, last, block)
        before += count
        done += count * size
        weights_at += count * weight_size
        params_at += count * param_size


def _columns(
    k: Kernel,
    spec: Depthwise,
    schedule: _Schedule,
    bases: tuple[str, str, str],
    fixed: tuple[str, str],
    sizes: tuple[int, int],
    columns: tuple[str, str],
) -> None:
    """All tiles of a row, or of some columns of it. `sizes`: channels of the block, and strips."""
    tx = spec.tile[1] * sizes[1]

    def column(x: str) -> None:
        if spec.width % tx:
            x = k.call("llvm.smin.i64", x, str(spec.width - tx))
        source = k.step(bases[0], x, spec.stride[1] * spec.in_pixel)
        out = k.step(bases[1], x, spec.out_pixel)
        other = k.step(bases[2], x, spec.other_pixel) if bases[2] else ""
        _tile(k, spec, schedule, (source, out, other), fixed, sizes)

    k.each(*columns, column, tx)


def _tile(
    k: Kernel,
    spec: Depthwise,
    schedule: _Schedule,
    bases: tuple[str, str, str],
    fixed: tuple[str, str],
    sizes: tuple[int, int],
) -> None:
    ty, tx = spec.tile
    weights, params = fixed
    size = sizes[0] * sizes[1]
    weight_size = size * k.machine.weight_bytes
    sums = [load_starts(k, spec.finish, params, 4, size)] * (ty * tx)
    load = _Loader(k, spec, bases[0], sizes)
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
        for output in (each for each, _ in uses if last[each] == index):  # at once: their sums leave the registers
            _finish(k, spec, bases, params, (output, sums[output]), sizes)


def _finish(
    k: Kernel,
    spec: Depthwise,
    bases: tuple[str, str, str],
    params: str,
    done: tuple[int, list[str]],
    sizes: tuple[int, int],
) -> None:
    """Write an output of a tile; `done`: which one, and its sums."""
    (output, sums), (channels, strips), tx = done, sizes, spec.tile[1]
    size = channels * strips
    y, x = divmod(output, tx)
    out = k.at(bases[1], y * spec.out_row + x * spec.out_pixel)
    other = k.at(bases[2], y * spec.other_row + x * spec.other_pixel) if bases[2] else ""
    apart = tuple(k.at(out, strip * tx * spec.out_pixel) for strip in range(strips)) if strips > 1 else ()
    places = [Places(header="%params", out=out, other=other, apart=apart)]
    finish(k, spec.finish, [sums], load_affine(k, params, 4, size), places, size)


class _Loader:
    """Pixels of a tile, each loaded and unpacked once."""

    def __init__(self, k: Kernel, spec: Depthwise, base: str, sizes: tuple[int, int]) -> None:
        self.k, self.spec, self.base = k, spec, base
        self.channels, self.strips = sizes
        self.size = self.channels * self.strips
        self.pixels: dict[Point, str] = {}
        self.pairs: dict[tuple[Point, Point], tuple[str, str]] = {}

    def quad(self, pixels: list[Point | None]) -> list[tuple[str, ...]]:
        """Four vectors of operands for `dot`, from four pixels; None is one that no weight looks at."""
        some = next(pixel for pixel in pixels if pixel is not None)
        a, b, c, d = ((pixels[i] or pixels[i ^ 1] or some) for i in range(4))
        first, second = self._pair(a, b), self._pair(c, d)
        made = [
            self.k.unpack(first[half], second[half], high, 2, self.size) for half in (0, 1) for high in (False, True)
        ]
        return [self.k.operand(vector, self.size) for vector in made]

    def _pair(self, a: Point, b: Point) -> tuple[str, str]:
        if (a, b) not in self.pairs:
            x, y = self._pixel(a), self._pixel(b)
            low, high = (self.k.unpack(x, y, half, 1, self.size) for half in (False, True))
            self.pairs[a, b] = (low, high)
        return self.pairs[a, b]

    def _pixel(self, at: Point) -> str:
        if at not in self.pixels:
            address = self.k.at(self.base, at[0] * self.spec.in_row + at[1] * self.spec.in_pixel)
            step = self.spec.tile[1] * self.spec.stride[1] * self.spec.in_pixel
            parts = [self.k.load(f"<{self.channels} x i8>", self.k.at(address, i * step)) for i in range(self.strips)]
            self.pixels[at] = self.k.joined(parts, self.channels)
        return self.pixels[at]


def _blocks(spec: Depthwise, machine: Machine) -> list[NDArray[np.int64]]:
    """Return the channels of each block, as its four vectors have them."""
    found, first = [], 0
    for size in block_widths(spec.channels, machine):
        # floats are stored without packing, so their channels are in order
        natural = spec.finish.out == "f32" or spec.finish.other == "f32"
        assert not natural, "unpacking decides the order of channels"
        found.append(np.tile(first + order(4, size).reshape(4, -1), (1, strips(spec, size, machine))))
        first += size
    return found


def pack_weights(weights: NDArray[np.int8], spec: Depthwise, machine: Machine) -> NDArray[np.uint8]:
    """Integers [channels, ky, kx] as the kernel reads them."""
    variants = _schedule(spec.kernel, spec.stride, spec.tile).variants
    found = []
    for channels in _blocks(spec, machine):
        block = np.zeros((len(variants), *channels.shape, 4), np.int8)
        for index, taps in enumerate(variants):
            for place, tap in enumerate(taps):
                if tap is not None:
                    block[index, :, :, place] = weights[:, tap[0], tap[1]][channels]
        found.append(pack_quads(block, machine))
    return np.concatenate(found)


def pack_affine(
    scale: NDArray[np.float64], bias: NDArray[np.float64], spec: Depthwise, machine: Machine
) -> NDArray[np.uint8]:
    """Scales and biases of all channels as the kernel reads them behind the header."""
    rows = affine_rows(scale, bias, spec.finish)
    blocks = [rows[:, channels.reshape(-1)].reshape(-1) for channels in _blocks(spec, machine)]
    return np.concatenate(blocks).view(np.uint8)
