"""Convolution and linear as an implicit matrix product, on bytes with the channels last.

A tile is `pixels` of one row of the output times `vectors` of output channels. Its sums run over taps, and over the
bytes of a tap, four at a time: each is spread over a vector and multiplied with a vector of weights.

    weights   [block][tap][ceil(length / 4)][vectors][elements][4]

Where the input has no gap between pixels, the taps of a kernel row are one run of bytes. `length` is rounded up to
four; the weights beyond it are zero, so it does not matter what is read there. With `moved`, blocks read from a place
of their own in the input (groups): their offsets come with their scales.

`listed`: the pairs of bytes whose products are summed in int16 are chosen for each block (pairing.py), so that weights
may have all 8 bits. A block has a list of steps: which 16 bytes are loaded, and which four of them are multiplied.

    weights   [block](list, weights, count)   [block]{[step](offset, places)   [step][vectors][elements][4]}

Weights of later products come from far away. The bytes from `ahead` to `until`, which ahead.py chooses, are asked for
while this product is computed, a few with each step of its sums.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from fxquant.engines.native.finish import HEADER_BYTES, Finish, Places, finish, load_affine, load_starts
from fxquant.engines.native.gemm_tiles import split_row
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_UNROLLED = 120  # dot products that are written out
OFFSET_BYTES = 64
ENTRY_BYTES = 32  # of the table of lists
LINE = 64  # bytes that are loaded from memory at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Taps:
    """Runs of bytes that belong to one output: `ys` times `xs` of `length` bytes."""

    ys: int
    xs: int
    y_step: int
    x_step: int
    length: int

    @property
    def count(self) -> int:
        return self.ys * self.xs

    @property
    def quads(self) -> int:
        return -(-self.length // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """The shape of one kernel. Strides are in bytes; those of inputs are from one output to the next.

    `rows` of `width` outputs, the last of them of `last` instead. `blocks` are the vectors of output channels that a
    tile has, for each block of channels. With `line`, a row is a tile of several lines of so many outputs.
    """

    taps: Taps
    rows: int
    width: int
    last: int
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    other_row: int = 0
    other_pixel: int = 0
    line: int = 0
    in_line: int = 0
    out_line: int = 0
    other_line: int = 0
    blocks: tuple[int, ...]
    narrow: bool = False  # whether the vectors of the last block have half the width
    pixels: int  # at most, of a tile
    chunk: int  # rows that are done for all blocks before the next ones
    moved: bool = False
    finish: Finish
    pairs: bool = False  # whether sums of two products fit int16
    listed: bool = False  # they do, as the bytes are paired

    def place(self, pixel: int, step: int, line: int) -> int:
        """Return where an output of a tile is, by the strides of one and of a line."""
        return pixel // self.line * line + pixel % self.line * step if self.line else pixel * step

    def steps(self, machine: Machine) -> int:
        """Steps of the sums of all tiles, with each of which a line of memory can be asked for."""
        if self.listed:
            return 0
        return (
            self.rows * sum(self.tiles(vectors, machine) for vectors in self.blocks) * self.taps.count * self.taps.quads
        )

    def tiles(self, vectors: int, machine: Machine) -> int:
        """Tiles of a row."""
        _, count, rest = split_row(self.width, min(self.pixels, machine.most_rows(vectors)))
        return count + bool(rest)

    def widths(self, machine: Machine) -> list[int]:
        """Bytes of the vectors of each block."""
        last = machine.width // 2 if self.narrow else machine.width
        return [machine.width] * (len(self.blocks) - 1) + [last]

    def runs(self, machine: Machine) -> list[tuple[int, int, int]]:
        """(vectors, their width, how many blocks) for each run of equal blocks."""
        found = itertools.groupby(zip(self.blocks, self.widths(machine), strict=True))
        return [(*each, len([*equal])) for each, equal in found]


def emit(name: str, spec: Gemm, machine: Machine) -> Kernel:
    """The kernel: `x`, packed `weights`, `params` (header, then each block's scales and biases), `out`, `other`."""
    k = Kernel(name, ("x", "weights", "params", "out", "other", "ahead", "until"), machine.for_pairs(spec.pairs))
    ahead = _begin_ahead(k, spec)
    if spec.chunk >= spec.rows:
        _rows(k, spec, "%y0", "%y1", ahead)
    else:

        def chunk(y: str) -> None:
            _rows(k, spec, y, k.call("llvm.smin.i64", k.add(y, spec.chunk), "%y1"), ahead)

        k.each("%y0", "%y1", chunk, spec.chunk)
    return k


@dataclass(frozen=True, slots=True)
class _Ahead:
    """By how many bytes a step, a tile, and a row of a block, move on in what is asked for."""

    step: str
    tile: str
    row: str


def _begin_ahead(k: Kernel, spec: Gemm) -> _Ahead:
    """Spread what is to be asked for over all steps of this call."""
    steps, tiles = spec.taps.count * spec.taps.quads, spec.tiles(spec.blocks[0], k.machine)
    first, last = (k.value(f"ptrtoint ptr {name} to i64") for name in ("%ahead", "%until"))
    size = k.add(k.value(f"sub i64 {last}, {first}"), -1)
    rows, blocks = (k.value(f"sub i64 {high}, {low}") for high, low in (("%y1", "%y0"), ("%n1", "%n0")))
    turns = k.call("llvm.smax.i64", k.mul(k.value(f"mul i64 {rows}, {blocks}"), tiles * steps), "1")
    step = k.call("llvm.smin.i64", k.add(k.value(f"sdiv i64 {size}, {turns}"), 1), str(LINE))
    return _Ahead(step, k.mul(step, steps), k.mul(step, tiles * steps))


def _rows(k: Kernel, spec: Gemm, low: str, high: str, ahead: _Ahead) -> None:
    """All blocks of channels in a range of rows."""
    machine = k.machine
    done = weights_at = channels_at = 0
    params_at = HEADER_BYTES
    for vectors, width, count in spec.runs(machine):
        weight_size = spec.taps.count * spec.taps.quads * vectors * width * machine.weight_bytes
        param_size = _param_bytes(spec, vectors, width)
        channels = vectors * width // 4
        starts = (done, weights_at, params_at, channels_at)

        def block(
            index: str,
            vectors: int = vectors,
            width: int = width,
            sizes: tuple[int, int, int] = (weight_size, param_size, channels),
            starts: tuple[int, int, int, int] = starts,
        ) -> None:
            place = k.add(index, -starts[0])
            weights = k.step(k.at("%weights", starts[1]), place, sizes[0])
            if spec.listed:
                weights = k.step("%weights", index, ENTRY_BYTES)
            params = k.step(k.at("%params", starts[2]), place, sizes[1])
            x = "%x"
            if spec.moved:
                x = k.at(x, k.load("i64", params, 8))
                params = k.at(params, OFFSET_BYTES)
            size = spec.finish.out_bytes
            out = k.step(k.at("%out", starts[3] * size), place, sizes[2] * size)
            size = 4 if spec.finish.other == "f32" else 1
            other = k.step(k.at("%other", starts[3] * size), place, sizes[2] * size) if spec.finish.other else ""
            before = k.value(f"mul i64 {k.value(f'sub i64 {low}, %y0')}, {k.value('sub i64 %n1, %n0')}")
            here = k.value(f"mul i64 {k.value(f'sub i64 {index}, %n0')}, {k.value(f'sub i64 {high}, {low}')}")
            rows = k.value(f"sub i64 {k.value(f'add i64 {before}, {here}')}, {low}")
            asked = k.at("%ahead", k.value(f"mul i64 {rows}, {ahead.row}"))
            _block_rows(k, spec, vectors, _Block(x, weights, params, out, other, asked, ahead, width), (low, high))

        first = k.call("llvm.smax.i64", "%n0", str(done))
        last = k.call("llvm.smin.i64", "%n1", str(done + count))
        k.each(first, last, block)
        done += count
        weights_at += count * weight_size
        params_at += count * param_size
        channels_at += count * channels


@dataclass(frozen=True, slots=True)
class _Block:
    """Addresses of a block of channels; `x`, `out` and `other` of the pixel that is next, `asked` for the next step."""

    x: str
    weights: str
    params: str
    out: str
    other: str
    asked: str
    ahead: _Ahead
    width: int  # of its vectors

    def moved(self, k: Kernel, index: str, steps: tuple[int, int, int], ahead: str) -> _Block:
        x, out = k.step(self.x, index, steps[0]), k.step(self.out, index, steps[1])
        other = k.step(self.other, index, steps[2]) if self.other else ""
        asked = self.asked if index == "0" else k.at(self.asked, k.value(f"mul i64 {index}, {ahead}"))
        return replace(self, x=x, out=out, other=other, asked=asked)


def _block_rows(k: Kernel, spec: Gemm, vectors: int, block: _Block, bounds: tuple[str, str]) -> None:
    steps = (spec.in_row, spec.out_row, spec.other_row)

    def row(y: str, width: int) -> None:
        _row(k, spec, vectors, block.moved(k, y, steps, block.ahead.row), width)

    low, high = bounds
    if spec.last == spec.width:
        k.each(low, high, lambda y: row(y, spec.width))
        return
    full = spec.rows - 1
    k.each(low, k.call("llvm.smin.i64", high, str(full)), lambda y: row(y, spec.width))
    ends = k.value(f"icmp eq i64 {high}, {spec.rows}")
    k.when(ends, lambda: row(str(full), spec.last))


def _row(k: Kernel, spec: Gemm, vectors: int, block: _Block, width: int) -> None:
    pixels, count, rest = split_row(width, min(spec.pixels, k.machine.most_rows(vectors)))
    steps = tuple(pixels * step for step in (spec.in_pixel, spec.out_pixel, spec.other_pixel))
    assert len(steps) == 3
    k.each(0, count, lambda index: _tile(k, spec, vectors, block.moved(k, index, steps, block.ahead.tile), pixels))
    if rest:
        _tile(k, spec, vectors, block.moved(k, str(count), steps, block.ahead.tile), rest)


def _tile(k: Kernel, spec: Gemm, vectors: int, block: _Block, pixels: int) -> None:
    width, taps = block.width, spec.taps
    run_size = taps.quads * vectors * width * k.machine.weight_bytes
    starts = load_starts(k, spec.finish, block.params, vectors, width)
    carries = [Carry(type=f"<{width // 4} x i32>", start=start) for start in starts] * pixels
    if not spec.listed:
        carries.append(Carry(type="ptr", start=block.asked))
    sums = [carry.start for carry in carries]

    def again(sums: list[str]) -> list[Carry]:
        return [replace(carry, start=total) for carry, total in zip(carries, sums, strict=True)]

    def tap(sums: list[str], x: str, weights: str) -> list[str]:
        return _run(k, spec, (vectors, pixels, block), again(sums), x, weights)

    if spec.listed:
        sums = _steps(k, spec, vectors, pixels, carries, block)
    elif taps.count * taps.quads * pixels * vectors <= _UNROLLED:

        def all_taps(_: str, sums: list[str]) -> list[str]:
            for index in range(taps.count):
                y, x = divmod(index, taps.xs)
                place = k.at(block.x, y * taps.y_step + x * taps.x_step)
                sums = tap(sums, place, k.at(block.weights, index * run_size))
            return sums

        sums = k.loop(0, 1, 1, all_taps, carries, apart=spec.finish.act is not None)
    else:

        def tap_row(y: str, sums: list[str]) -> list[str]:
            x_row = k.step(block.x, y, taps.y_step)
            weight_row = k.step(block.weights, y, taps.xs * run_size)

            def one(x: str, sums: list[str]) -> list[str]:
                return tap(sums, k.step(x_row, x, taps.x_step), k.step(weight_row, x, run_size))

            return k.loop(0, taps.xs, 1, one, again(sums))

        sums = k.loop(0, taps.ys, 1, tap_row, carries)
    affine = load_affine(k, block.params, vectors, width)
    places = [
        Places(
            header="%params",
            out=k.at(block.out, spec.place(pixel, spec.out_pixel, spec.out_line)),
            other=k.at(block.other, spec.place(pixel, spec.other_pixel, spec.other_line)) if block.other else "",
        )
        for pixel in range(pixels)
    ]
    rows = [sums[pixel * vectors : (pixel + 1) * vectors] for pixel in range(pixels)]
    finish(k, spec.finish, rows, affine, places, width)


def _run(k: Kernel, spec: Gemm, tile: tuple[int, int, _Block], carries: list[Carry], x: str, weights: str) -> list[str]:
    """Return the products of one run of bytes. `tile`: vectors, pixels, and its block."""
    quads, (vectors, pixels, block) = spec.taps.quads, tile
    width, size = block.width, block.width * k.machine.weight_bytes
    unroll = quads if quads * pixels * vectors <= _UNROLLED else 1

    def body(index: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        x_at, weights_at = k.step(x, index, 4), k.step(weights, index, vectors * size)
        for turn in range(unroll):
            loaded = [k.weights(k.at(weights_at, (turn * vectors + v) * size), width) for v in range(vectors)]
            for pixel in range(pixels):
                quad = k.quad(k.at(x_at, 4 * turn + spec.place(pixel, spec.in_pixel, spec.in_line)), width)
                for v in range(vectors):
                    place = pixel * vectors + v
                    sums[place] = k.dot(sums[place], quad, loaded[v], width)
            k.call("llvm.prefetch.p0", sums[-1], "0", "2", "1")
            sums[-1] = k.at(sums[-1], block.ahead.step)
        return sums

    return k.loop(0, quads, unroll, body, carries)


def _steps(k: Kernel, spec: Gemm, vectors: int, pixels: int, carries: list[Carry], block: _Block) -> list[str]:
    """Return the products of a block's list of steps."""
    machine = k.machine
    entry = [k.load("i64", k.at(block.weights, 8 * index), 8) for index in range(3)]
    steps, weights = (k.at("%weights", offset) for offset in entry[:2])

    def body(index: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        step = k.step(steps, index, 8)
        x_at = k.at(block.x, k.value(f"sext i32 {k.load('i32', step, 8)} to i64"))
        places = k.same(k.load("i32", k.at(step, 4), 4), machine.width)
        at = k.step(weights, index, vectors * machine.width)
        loaded = [k.weights(k.at(at, v * machine.width), machine.width) for v in range(vectors)]
        for pixel in range(pixels):
            quad = k.picked(k.at(x_at, spec.place(pixel, spec.in_pixel, spec.in_line)), places)
            for v in range(vectors):
                place = pixel * vectors + v
                sums[place] = k.dot(sums[place], quad, loaded[v], machine.width)
        return sums

    return k.loop(0, entry[2], 1, body, carries)


def _param_bytes(spec: Gemm, vectors: int, width: int) -> int:
    return spec.finish.rows * vectors * width + (OFFSET_BYTES if spec.moved else 0)
