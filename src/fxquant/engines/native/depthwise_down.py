"""Tiles of a depthwise convolution that go down their rows, with weights in registers.

Loads are what other tiles wait for: every dot product reads its weights. Here half of the channels of a block are done
at a time, so that all their weights fit in registers: of the four vectors that a quad of pixels unpacks to, the two of
one half of each lane. A row of the input is unpacked once, for all outputs that have a tap in it:

    step s      rows s * stride + (kernel - stride) ... s * stride + kernel - 1; then row s of the output is done
    sums        of row s, and of those below it that have a tap in these rows, go from step to step

A kernel of 5 x 5 has a column beyond the quads of its rows. Of that, four pixels below each other are a quad: the last
four taps of the row of the output that is done, and the first of the next one.

The words of the first half wait in memory until those of the second are there to be packed to bytes with them. The
second half asks for the pixels of the next tile, which the first cache seldom has.
"""

from __future__ import annotations

import math

from fxquant.engines.native.depthwise_load import Loader
from fxquant.engines.native.depthwise_shape import Depthwise, Point, Variant
from fxquant.engines.native.finish import Finish, Places, finish_half, load_affine, load_starts, store_halves
from fxquant.engines.native.gemm_shape import LINE
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_LOWEST, _COLUMNS = 8, 2  # outputs of a tile, at most
_WEIGHTS = 12  # vectors of weights that stay in registers, beside the sums of two columns
_WIDE = (5, 5)  # a kernel with a column beyond its quads: 14 vectors of weights, beside the sums of one column
_FEWEST = 4  # rows that are worth it
_EXTRA = 0.5  # rows: what a tile takes beyond those of its own

Sums = dict[Point, list[str]]  # by row, from the step's on, and column


def choose_down(kernel: Point, stride: Point, extent: Point, finish: Finish, machine: Machine) -> Point | None:
    """Return the rows and columns of outputs of a tile; None where weights do not fit, or other tiles are faster."""
    rows, width = extent
    if machine.dot != "vpdpbusd" or machine.registers < 32 or finish.out != "u8" or finish.other:
        return None
    if rows < _FEWEST or not stride[0] < kernel[0]:
        return None
    wide = kernel == _WIDE and stride == (1, 1)
    if not wide and (kernel[1] > 4 or 2 * kernel[0] * _slots(kernel, stride) > _WEIGHTS):
        return None
    lowest = range(_FEWEST, min(rows, _LOWEST) + 1)
    above = _EXTRA + (kernel[0] - stride[0]) / 2
    best = min(lowest, key=lambda y: (-(-rows // y) * (y + above), -y))
    return best, 1 if wide else min(width, _COLUMNS)


def _slots(kernel: Point, stride: Point) -> int:
    """Tell how many outputs beside each other have all their taps, but those beyond, in the columns of one quad."""
    return max(4 - kernel[1], 0) // stride[1] + 1


def down_variants(spec: Depthwise) -> list[Variant]:
    """Return the variants of weights: for each row of the kernel, those of the outputs that share a quad.

    Behind them are those of the column beyond: of the output that is done, and of the next one.
    """
    (ky, kx), sx = spec.kernel, spec.stride[1]
    slots = range(_slots(spec.kernel, spec.stride))
    variants: list[Variant] = [
        tuple((y, x - slot * sx) if 0 <= x - slot * sx < kx else None for x in range(4))
        for y in range(ky)
        for slot in slots
    ]
    if spec.kernel == _WIDE:
        variants.append(tuple((y, kx - 1) for y in range(ky - 4, ky)))
        variants.append(((0, kx - 1), None, None, None))
    return variants


def emit_down(
    k: Kernel, spec: Depthwise, bases: tuple[str, str, str], fixed: tuple[str, str], sizes: tuple[int, int]
) -> None:
    """Write a tile. `fixed`: the block's weights and numbers; `sizes`: its channels, and strips."""
    words = k.scratch(math.prod(spec.tile) * k.machine.width)
    for half in range(2):
        _Half(k, spec, (bases[0], bases[1], words), fixed, sizes, half).emit()


class _Half:
    """Half of the channels of a tile; `bases` are the addresses of its input, its output, and of words that wait."""

    def __init__(
        self,
        k: Kernel,
        spec: Depthwise,
        bases: tuple[str, str, str],
        fixed: tuple[str, str],
        sizes: tuple[int, int],
        half: int,
    ) -> None:
        self.k, self.spec, self.sizes, self.half = k, spec, sizes, half
        self.source, self.out, self.waiting = bases
        self.size = size = sizes[0] * sizes[1]
        self.slots = _slots(spec.kernel, spec.stride)
        weights, params = fixed
        mine = slice(2 * half, 2 * half + 2)
        self.weights = [
            [k.weights(k.at(weights, (4 * variant + v) * size), size) for v in range(4)[mine]]
            for variant in range(len(down_variants(spec)))
        ]
        scales, biases = load_affine(k, params, 4, size)
        self.affine = scales[mine], biases[mine]
        self.starts = load_starts(k, spec.finish, params, 4, size)[mine]
        self.below = -(-spec.kernel[0] // spec.stride[0]) - 1  # rows of the output that go on after a step

    def emit(self) -> None:
        k, spec, below = self.k, self.spec, self.below
        (ky, _), (sy, _), (ty, tx) = spec.kernel, spec.stride, spec.tile
        sums: Sums = {}
        for y in range(ky - sy):
            self._add(sums, k.at(self.source, y * spec.in_row), y, range(min(below, ty)))
        if spec.kernel == _WIDE:
            self._add_beyond(sums, self.source, [(0, 4), None, None, None], {0: -1})
        steady = ty - below
        places = [(y, x) for y in range(below) for x in range(tx)]
        type_ = f"<{self.size // 4} x i32>"

        def turn(index: str, values: list[str]) -> list[str]:
            pairs = zip(values[::2], values[1::2], strict=True)
            after = self._step(index, dict(zip(places, map(list, pairs), strict=True)), below + 1)
            return [value for place in places for value in after[place]]

        carries = [Carry(type=type_, start=value) for place in places for value in sums[place]]
        values = k.loop(0, steady, 1, turn, carries)
        sums = {place: values[2 * index : 2 * index + 2] for index, place in enumerate(places)}
        for step in range(steady, ty):
            sums = self._step(str(step), sums, ty - step)

    def _step(self, index: str, sums: Sums, rows: int) -> Sums:
        """Add the rows of a step to the sums of so many rows of outputs, finish the first, and return the others."""
        k, spec = self.k, self.spec
        (ky, _), (sy, _), tx = spec.kernel, spec.stride, spec.tile[1]
        top = k.step(self.source, index, sy * spec.in_row)
        for y in range(ky - sy, ky):
            self._add(sums, k.at(top, y * spec.in_row), y, range(rows))
        if spec.kernel == _WIDE:
            self._add_beyond(sums, top, [(y, 4) for y in range(1, 5)], {0: -2, 1: -1} if rows > 1 else {0: -2})
        out, waiting = k.step(self.out, index, spec.out_row), k.step(self.waiting, index, tx * self.size)
        for x in range(tx):
            self._finish(sums[0, x], k.at(out, x * spec.out_pixel), k.at(waiting, x * self.size))
        return {(y - 1, x): values for (y, x), values in sums.items() if y}

    def _add(self, sums: Sums, row: str, y: int, outputs: range) -> None:
        """Add the products of a row of the input; it is `y` rows below the first of the first output."""
        k, spec, tx = self.k, self.spec, self.spec.tile[1]
        (ky, kx), (sy, sx) = spec.kernel, spec.stride
        load, columns = Loader(k, spec, row, self.sizes), (tx - 1) * sx + kx
        if self.half:  # the first half waits for what is not near, so there is time in this one
            new = self.sizes[1] * tx * sx  # columns of the next tile that are not of this one
            for x in range(columns + new - tx * sx, columns + 2 * new - tx * sx, max(1, LINE // spec.in_pixel)):
                k.call("llvm.prefetch.p0", k.at(row, x * spec.in_pixel), "0", "3", "1")
        quads = []
        for first in range(0, tx, self.slots):
            pixels: list[Point | None] = [(0, x) if x < columns else None for x in range(first * sx, first * sx + 4)]
            quads.append(load.quad(pixels, (self.half,)))
        for output in outputs:
            if not 0 <= y - output * sy < ky:
                continue
            for x in range(tx):
                quad, slot = divmod(x, self.slots)
                weights = self.weights[(y - output * sy) * self.slots + slot]
                sums[output, x] = self._dots(sums.get((output, x), self.starts), quads[quad], weights)

    def _add_beyond(self, sums: Sums, top: str, pixels: list[Point | None], outputs: dict[int, int]) -> None:
        """Add the products of four pixels of the column beyond; `outputs`: the variant of each that has some."""
        operands = Loader(self.k, self.spec, top, self.sizes).quad(pixels, (self.half,))
        for output, variant in outputs.items():
            sums[output, 0] = self._dots(sums[output, 0], operands, self.weights[variant])

    def _dots(self, sums: list[str], operands: list[tuple[str, ...]], weights: list[tuple[str, ...]]) -> list[str]:
        return [
            self.k.dot(total, operand, weight, self.size)
            for total, operand, weight in zip(sums, operands, weights, strict=True)
        ]

    def _finish(self, sums: list[str], out: str, waiting: str) -> None:
        k, spec, size = self.k, self.spec, self.size
        words = finish_half(k, spec.finish, sums, self.affine, "%params", size)
        type_ = f"<{size // 2} x i16>"
        if not self.half:
            k.store(type_, words, waiting, size)
            return
        strips = self.sizes[1]
        step = spec.tile[1] * spec.out_pixel
        apart = tuple(k.at(out, strip * step) for strip in range(strips)) if strips > 1 else ()
        place = Places(header="%params", out=out, apart=apart)
        store_halves(k, spec.finish, k.load(type_, waiting, size), words, place, size)
