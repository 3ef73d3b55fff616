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

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fxquant.engines.native.finish import HEADER_BYTES, Places, finish, load_affine, load_starts
from fxquant.engines.native.gemm_shape import LINE, Gemm
from fxquant.engines.native.gemm_tiles import split_row
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_UNROLLED = 120  # dot products that are written out
OFFSET_BYTES = 64
ENTRY_BYTES = 32  # of the table of lists


def emit(name: str, spec: Gemm, machine: Machine) -> Kernel:
    """Emit it: `x`, packed `weights`, `params` (header, then each block's scales and biases), `out`, `other`."""
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
    steps, tiles = spec.taps.steps, spec.tiles(spec.blocks[0], k.machine)
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
        weight_size = spec.taps.steps * vectors * width * machine.weight_bytes
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


_Tile = tuple[int, int, _Block]  # vectors and pixels of a tile, and its block


def _block_rows(k: Kernel, spec: Gemm, vectors: int, block: _Block, bounds: tuple[str, str]) -> None:
    steps = (spec.in_row, spec.out_row, spec.other_row)

    def row(y: str, width: int) -> None:
        at, inside = block, y
        if spec.depth is not None:
            depth, plane = spec.depth, k.value(f"udiv i64 {y}, {spec.depth.rows}")
            inside = k.value(f"urem i64 {y}, {depth.rows}")
            at = at.moved(k, plane, (depth.into, depth.out, depth.other), k.mul(block.ahead.row, depth.rows))
        _row(k, spec, vectors, at.moved(k, inside, steps, block.ahead.row), width)

    low, high = bounds
    if spec.last == spec.width:
        k.each(low, high, lambda y: row(y, spec.width))
        return
    if spec.depth is not None:

        def either(y: str, rows: int = spec.depth.rows) -> None:
            ends = k.value(f"icmp eq i64 {k.value(f'urem i64 {y}, {rows}')}, {rows - 1}")
            k.when(ends, lambda: row(y, spec.last))
            k.when(k.value(f"xor i1 {ends}, true"), lambda: row(y, spec.width))

        k.each(low, high, either)
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
    starts, full = load_starts(k, spec.finish, block.params, vectors, width), vectors - spec.shared
    first = starts[:full] * pixels + starts[full:] * len(_pairs(spec, pixels))
    carries = [Carry(type=f"<{width // 4} x i32>", start=start) for start in first]
    if not spec.listed:
        carries.append(Carry(type="ptr", start=block.asked))
    sums = [carry.start for carry in carries]

    def again(sums: list[str]) -> list[Carry]:
        return [replace(carry, start=total) for carry, total in zip(carries, sums, strict=True)]

    def tap(sums: list[str], x: str, weights: str) -> list[str]:
        return _run(k, spec, (vectors, pixels, block), again(sums), x, weights)

    if spec.listed:
        sums = _steps(k, spec, vectors, pixels, carries, block)
    elif taps.steps * pixels * vectors <= _UNROLLED:

        def all_taps(_: str, sums: list[str]) -> list[str]:
            for index in range(taps.count):
                sums = tap(sums, k.at(block.x, taps.place(index)), k.at(block.weights, index * run_size))
            return _rests(k, spec, (vectors, pixels, block), sums)

        sums = k.loop(0, 1, 1, all_taps, carries, apart=spec.finish.act is not None)
    else:

        def tap_plane(z: str, sums: list[str]) -> list[str]:
            x_plane = k.step(block.x, z, taps.z_step)
            weight_plane = k.step(block.weights, z, taps.ys * taps.xs * run_size)

            def tap_row(y: str, sums: list[str]) -> list[str]:
                x_row = k.step(x_plane, y, taps.y_step)
                weight_row = k.step(weight_plane, y, taps.xs * run_size)

                def one(x: str, sums: list[str]) -> list[str]:
                    return tap(sums, k.step(x_row, x, taps.x_step), k.step(weight_row, x, run_size))

                return k.loop(0, taps.xs, 1, one, again(sums))

            return k.loop(0, taps.ys, 1, tap_row, again(sums))

        sums = k.loop(0, taps.zs, 1, tap_plane, carries) if taps.zs > 1 else tap_plane("0", sums)
        sums = _rests(k, spec, (vectors, pixels, block), sums)
    _finish(k, spec, (vectors, pixels, block), sums)


def _finish(k: Kernel, spec: Gemm, tile: _Tile, sums: list[str]) -> None:
    """Write the outputs of a tile: those with vectors of their own, then those that share some."""
    vectors, pixels, block = tile
    full, width = vectors - spec.shared, block.width
    scales, biases = load_affine(k, block.params, vectors, width)
    out = [k.at(block.out, spec.place(pixel, spec.out_pixel, spec.out_line)) for pixel in range(pixels)]
    other = [
        k.at(block.other, spec.place(pixel, spec.other_pixel, spec.other_line)) if block.other else ""
        for pixel in range(pixels)
    ]
    places = [Places(header="%params", out=at, other=add) for at, add in zip(out, other, strict=True)]
    rows = [sums[pixel * full : (pixel + 1) * full] for pixel in range(pixels)]
    finish(k, spec.finish, rows, (scales[:full], biases[:full]), places, width)
    if spec.shared:
        behind = full * width // 4
        pairs = _pairs(spec, pixels)
        places = [
            Places(
                header="%params",
                out="",
                apart=tuple(k.at(out[pixel], behind) for pixel in pair),
                others=tuple(k.at(other[pixel], behind) for pixel in pair) if block.other else (),
            )
            for pair in pairs
        ]
        rows = [[total] for total in sums[pixels * full : pixels * full + len(pairs)]]
        finish(k, spec.finish, rows, (scales[full:], biases[full:]), places, width)


def _pairs(spec: Gemm, pixels: int) -> list[tuple[int, int]]:
    """Return the pixels of a tile that share vectors; one that is left shares with itself."""
    return [(pixel, min(pixel + 1, pixels - 1)) for pixel in range(0, pixels, 2)] if spec.shared else []


def _multiply(
    k: Kernel, spec: Gemm, tile: _Tile, sums: list[str], quads: Iterable[tuple[str, ...]], weights: str
) -> list[str]:
    """Add the products of four bytes of each pixel, which are written one after the other as they are taken.

    `sums`: of pixels, of those that share a vector, half of which each of them has, and what to ask for.
    """
    (vectors, pixels, block), sums, taken = tile, list(sums), list[tuple[str, ...]]()
    width, full = block.width, vectors - spec.shared
    loaded = [k.weights(k.at(weights, v * width * k.machine.weight_bytes), width) for v in range(vectors)]
    for pixel, quad in enumerate(quads):
        taken.append(quad)
        for v in range(full):
            sums[pixel * full + v] = k.dot(sums[pixel * full + v], quad, loaded[v], width)
        if spec.shared and (pixel % 2 or pixel == pixels - 1):
            first = taken[pixel - pixel % 2]
            both = tuple(k.halves(a, b, width) for a, b in zip(first, quad, strict=True))
            place = pixels * full + pixel // 2
            sums[place] = k.dot(sums[place], both, loaded[full], width)
    if not spec.listed:
        k.call("llvm.prefetch.p0", sums[-1], "0", "2", "1")
        sums[-1] = k.at(sums[-1], block.ahead.step)
    return sums


def _run(k: Kernel, spec: Gemm, tile: _Tile, carries: list[Carry], x: str, weights: str) -> list[str]:
    """Return the products of one run of bytes. `tile`: vectors, pixels, and its block."""
    quads, (vectors, pixels, block) = spec.taps.quads, tile
    width, size = block.width, block.width * k.machine.weight_bytes
    unroll = quads if quads * pixels * vectors <= _UNROLLED else 1

    def body(index: str, sums: list[str]) -> list[str]:
        x_at, weights_at = k.step(x, index, 4), k.step(weights, index, vectors * size)
        for turn in range(unroll):
            places = [4 * turn + spec.place(pixel, spec.in_pixel, spec.in_line) for pixel in range(pixels)]
            found = (k.quad(k.at(x_at, place), width) for place in places)
            sums = _multiply(k, spec, tile, sums, found, k.at(weights_at, turn * vectors * size))
        return sums

    return k.loop(0, quads, unroll, body, carries)


def _rests(k: Kernel, spec: Gemm, tile: _Tile, sums: list[str]) -> list[str]:
    """Add the products of the last bytes of runs: byte i of a quad is that of run i of four."""
    taps, (vectors, pixels, block) = spec.taps, tile
    size = vectors * block.width * k.machine.weight_bytes
    for index in range(taps.joined):
        runs = range(4 * index, min(4 * index + 4, taps.count))
        starts = [taps.place(run) + 4 * taps.quads - byte for byte, run in enumerate(runs)]
        pixel_places = [spec.place(pixel, spec.in_pixel, spec.in_line) for pixel in range(pixels)]
        quads = (k.merged([k.at(block.x, start + place) for start in starts], block.width) for place in pixel_places)
        sums = _multiply(k, spec, tile, sums, quads, k.at(block.weights, (taps.count * taps.quads + index) * size))
    return sums


def _steps(k: Kernel, spec: Gemm, vectors: int, pixels: int, carries: list[Carry], block: _Block) -> list[str]:
    """Return the products of a block's list of steps."""
    machine = k.machine
    entry = [k.load("i64", k.at(block.weights, 8 * index), 8) for index in range(3)]
    steps, weights = (k.at("%weights", offset) for offset in entry[:2])

    def body(index: str, sums: list[str]) -> list[str]:
        step = k.step(steps, index, 8)
        x_at = k.at(block.x, k.value(f"sext i32 {k.load('i32', step, 8)} to i64"))
        places = k.same(k.load("i32", k.at(step, 4), 4), machine.width)
        at = k.step(weights, index, vectors * machine.width)
        found = (k.picked(k.at(x_at, spec.place(p, spec.in_pixel, spec.in_line)), places) for p in range(pixels))
        return _multiply(k, spec, (vectors, pixels, block), sums, found, at)

    return k.loop(0, entry[2], 1, body, carries)


def _param_bytes(spec: Gemm, vectors: int, width: int) -> int:
    return spec.finish.rows * vectors * width + (OFFSET_BYTES if spec.moved else 0)
