"""Attention in one kernel: softmax(q k^T * scale + mask) v, whose scores stay in the first cache.

The elements of a vector are queries. Scores and shares lie with the keys in front, so largest scores and sums are found
without looking across a vector, and keys and values are read where they are, one number at a time:

    turned[d] = q[., d] * factor        score[t] = turned[d] * k[t, d] + ... (+ mask[t])
    share[t]  = 2**(score[t] - max)     out[., d] = (share[t] * v[t, d] + ...) / sum, turned back

Where a mask of -inf leaves no key, the output is 0, as torch has it.

A block is two vectors of queries; work is split by blocks, for all heads.

With `words`, the factors of scores are int16, and two dimensions are multiplied and summed at once: each query and key
is rounded to a grid of its own, with about 2**13 steps to its largest number, and sums are exact. With `halves`, shares
and values are bfloat16, and two keys are taken at once; a share counts in the sum as it was rounded. Keys and values
come as attention_pairs.py leaves them. What comes out is off by a few thousandths of its largest number at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native import pair_products
from fxquant.engines.native.activations import exp2
from fxquant.engines.native.attention_pairs import scales
from fxquant.engines.native.gemm_tiles import even_parts
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.transpose import transpose
from fxquant.engines.native.values import round_up
from fxquant.engines.native.vector import Kernel

VECTORS = 2
_ONE = "0xR3F80"  # in bfloat16
_LOWEST = -3.4028234663852886e38


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The shape of one kernel. `heads` are (count, strides of q, k, v, mask, output); strides are in bytes.

    Rows are dense. A mask has a number for each key, the same for all queries, or `mask_row` bytes of numbers for the
    queries.
    """

    heads: tuple[tuple[int, int, int, int, int, int], ...]
    words: bool = False
    halves: bool = False
    queries: int
    keys: int
    depth: int  # of queries and keys
    width: int  # of values
    q_row: int
    k_row: int
    v_row: int  # of a key, or of a pair of them
    out_row: int
    masked: bool
    mask_row: int = 0  # from one key to the next, if each query has numbers of its own
    out: Literal["u8", "f32"] = "f32"
    low: int = 0
    high: int = 255
    nan: int = 0

    def blocks(self, machine: Machine) -> int:
        return -(-self.queries // (VECTORS * machine.floats))

    def scratch(self, machine: Machine) -> int:
        """Bytes that each block may use."""
        return scratch_bytes(self.keys, max(self.depth, self.width), machine)

    @property
    def depths(self) -> int:
        """Of how many products, or pairs of them, a score is the sum."""
        return -(-self.depth // 2) if self.words else self.depth

    @property
    def terms(self) -> int:
        """The same of an output."""
        return -(-self.keys // 2) if self.halves else self.keys


def scratch_bytes(keys: int, numbers: int, machine: Machine) -> int:
    """Of a block: turned queries or outputs, of so many numbers, and scores, or pairs of shares."""
    return (round_up(numbers, machine.floats) + round_up(keys, 2)) * VECTORS * machine.width


def emit(name: str, spec: Attention, machine: Machine) -> Kernel:
    """Return the kernel: `q`, `k`, `v`, `mask`, `params` (factor, 1 / scale and zero, 16 times), `scratch`, `out`."""
    k = Kernel(name, ("q", "k", "v", "mask", "params", "scratch", "out"), machine)
    scratch = k.step("%scratch", "%y0", spec.scratch(machine))  # threads begin at different blocks

    def nest(depth: int, places: tuple[str, ...]) -> None:
        if depth == len(spec.heads):
            _head(k, spec, places, scratch)
            return
        count, *steps = spec.heads[depth]
        k.each(
            0,
            count,
            lambda i: nest(depth + 1, tuple(k.step(at, i, step) for at, step in zip(places, steps, strict=True))),
        )

    nest(0, ("%q", "%k", "%v", "%mask", "%out"))
    return k


def _head(k: Kernel, spec: Attention, places: tuple[str, ...], scratch: str) -> None:
    q, keys, values, mask, out = places
    lanes = k.machine.floats
    full, rest = divmod(spec.queries, VECTORS * lanes)

    def block(index: str, count: int) -> None:
        first = k.step(q, index, VECTORS * lanes * spec.q_row)
        last = k.step(out, index, VECTORS * lanes * spec.out_row)
        own = k.step(mask, index, VECTORS * lanes * 4) if spec.mask_row else mask
        _Block(k, spec, count, scratch).write(first, keys, values, own, last)

    k.each("%y0", k.call("llvm.smin.i64", "%y1", str(full)), lambda index: block(index, VECTORS * lanes))
    if rest:
        k.when(k.value(f"icmp eq i64 %y1, {full + 1}"), lambda: block(str(full), rest))


class _Block:
    """The code of one block, of `count` queries."""

    def __init__(self, k: Kernel, spec: Attention, count: int, scratch: str) -> None:
        self.k, self.spec, self.count = k, spec, count
        self.lanes, self.size = k.machine.floats, k.machine.width
        self.vectors = -(-count // self.lanes)
        self.type = f"<{self.lanes} x float>"
        self.integers = f"<{self.lanes} x i32>"
        self.grids: list[str] = []  # the steps of queries, with `words`
        self.step = self.vectors * self.size  # from one key, or dimension, to the next
        self.turned = scratch
        self.scores = k.at(scratch, spec.scratch(k.machine) - round_up(spec.keys, 2) * VECTORS * self.size)

    def write(self, q: str, keys: str, values: str, mask: str, out: str) -> None:
        self._turn(q)
        if self.spec.words:
            self._round()
        best = self._score(keys, mask)
        sums = self._share(best)
        self._sum(values, sums)
        self._turn_back(out)

    def _pieces(self, total: int, body: Callable[[str, int], None]) -> None:
        """body(index, elements) over a row of floats, vector by vector."""
        full = total // self.lanes * self.lanes
        self.k.each(0, full, lambda index: body(index, self.lanes), self.lanes)
        if total > full:
            body(str(full), total - full)

    def _turn(self, q: str) -> None:
        k, spec = self.k, self.spec
        factor = k.load(self.type, "%params", self.size)

        def piece(index: str, kept: int) -> None:
            for v in range(self.vectors):
                rows = []
                for lane in range(self.lanes):
                    row = min(v * self.lanes + lane, self.count - 1)
                    at = k.at(k.step(q, index, 4), row * spec.q_row)
                    rows.append(k.load_part("float", self.lanes, kept, at))
                for place, column in enumerate(transpose(k, rows)[:kept]):
                    at = k.at(k.step(self.turned, index, self.step), place * self.step + v * self.size)
                    k.store(self.type, k.binary("fmul", column, factor, self.size), at, self.size)

        self._pieces(spec.depth, piece)

    def _round(self) -> None:
        """Turned queries to pairs of int16, in place; their grids."""
        k, spec, size = self.k, self.spec, self.size
        carries = [Carry(type=self.integers, start="zeroinitializer")] * self.vectors

        def look(index: str, largest: list[str]) -> list[str]:
            return [
                k.call(
                    f"llvm.smax.v{self.lanes}i32", bits, pair_products.size_bits(k, k.load(self.type, at, size), size)
                )
                for bits, at in zip(largest, self._row(self.turned, index), strict=True)
            ]

        both = [scales(k, bits, spec.depth) for bits in k.loop(0, spec.depth, 1, look, carries)]
        self.grids = [scale for scale, _ in both]

        def rounded(at: str, v: int) -> str:
            return k.round(k.binary("fmul", k.load(self.type, at, size), both[v][1], size), size)

        def pair(index: str, alone: bool = False) -> None:
            given, to = self._row(self.turned, k.mul(index, 2)), self._row(self.turned, index)
            for v in range(self.vectors):
                odd = "zeroinitializer" if alone else rounded(k.at(given[v], self.step), v)
                words = pair_products.words(k, rounded(given[v], v), odd, size)
                k.store(f"<{2 * self.lanes} x i16>", words, to[v], size)

        k.each(0, spec.depth // 2, pair)
        if spec.depth % 2:
            pair(str(spec.depth // 2), alone=True)

    def _row(self, base: str, row: str) -> list[str]:
        """Addresses of the vectors of a row of turned queries, of scores, or of pairs of them."""
        at = self.k.step(base, row, self.step)
        return [self.k.at(at, v * self.size) for v in range(self.vectors)]

    def _tiles(self, total: int, start: list[str], tile: Callable[[str, int, list[str]], list[str]]) -> list[str]:
        """tile(first, rows, values) for all rows, in tiles whose sums are kept in registers."""
        most = (self.k.machine.registers - self.vectors - 2) // self.vectors
        rows, count, others = even_parts(total, most)
        carries = [Carry(type=self.type, start=value) for value in start]
        done = count * rows
        values = self.k.loop(0, done, rows, lambda first, inside: tile(first, rows, inside), carries)
        if others:
            carries = [Carry(type=self.type, start=value) for value in values]
            smaller = rows - 1
            values = self.k.loop(done, total, smaller, lambda first, inside: tile(first, smaller, inside), carries)
        return values

    def _product(
        self, numbers: tuple[str, int, int], rows: int, vectors: str, count: int, kind: Literal["f32", "i16", "bf16"]
    ) -> list[str]:
        """Sums over `count` of a number, for each row, times the vectors. `numbers`: address, strides of row, sum."""
        k, n = self.k, self.lanes
        address, row_step, inner = numbers
        type_ = {"f32": self.type, "i16": f"<{2 * n} x i16>", "bf16": f"<{2 * n} x bfloat>"}[kind]
        total = self.integers if kind == "i16" else self.type
        zero = [Carry(type=total, start="zeroinitializer")] * (rows * self.vectors)

        def add(total: str, one: str, vector: str) -> str:
            if kind == "f32":
                return k.fma(one, vector, total, self.size)
            return (
                pair_products.dot_words(k, total, one, vector, self.size)
                if kind == "i16"
                else pair_products.dot_halves(k, total, one, vector)
            )

        def body(index: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            place = k.step(address, index, inner)
            loaded = [k.load(type_, at, self.size) for at in self._row(vectors, index)]
            for row in range(rows):
                at = k.at(place, row * row_step)
                one = k.spread(k.load("float", at, 4), self.size) if kind == "f32" else self._pair(at, type_)
                for v in range(self.vectors):
                    sums[row * self.vectors + v] = add(sums[row * self.vectors + v], one, loaded[v])
            return sums

        return k.loop(0, count, 1, body, zero)

    def _pair(self, address: str, type_: str) -> str:
        """Two numbers of 16 bits in every element."""
        k = self.k
        return k.value(f"bitcast <{self.size} x i8> {k.same(k.load('i32', address, 4), self.size)} to {type_}")

    def _score(self, keys: str, mask: str) -> list[str]:
        k, spec = self.k, self.spec
        kind: Literal["f32", "i16"] = "i16" if spec.words else "f32"

        def tile(first: str, rows: int, best: list[str]) -> list[str]:
            best = list(best)
            at = k.step(keys, first, spec.k_row)
            numbers = k.at(at, 4 * spec.words), spec.k_row, 4  # after the scale of a key
            sums = self._product(numbers, rows, self.turned, spec.depths, kind)
            for row in range(rows):
                if spec.words:
                    scale = k.spread(k.load("float", k.at(at, row * spec.k_row), 4), self.size)
                added = self._mask(mask, first, row) if spec.masked else []
                to = self._row(self.scores, first)
                for v in range(self.vectors):
                    score = sums[row * self.vectors + v]
                    if spec.words:
                        score = k.binary("fmul", k.to_float(score, self.size), scale, self.size)
                        if spec.masked:
                            score = k.fma(score, self.grids[v], added[v], self.size)
                    elif spec.masked:
                        score = k.binary("fadd", score, added[v], self.size)
                    best[v] = k.largest(best[v], score, self.size)
                    k.store(self.type, score, k.at(to[v], row * self.step), self.size)
            return best

        best = self._tiles(spec.keys, [k.splat(-math.inf)] * self.vectors, tile)
        return [k.largest(x, k.splat(_LOWEST), self.size) for x in best] if spec.masked else best

    def _mask(self, mask: str, first: str, row: int) -> list[str]:
        """What is added to the scores of a key."""
        k, own = self.k, self.spec.mask_row
        at = k.at(k.step(mask, first, own or 4), row * (own or 4))
        if not own:
            return [k.spread(k.load("float", at, 4), self.size)] * self.vectors
        kept = [min(self.lanes, self.count - v * self.lanes) for v in range(self.vectors)]
        return [k.load_part("float", self.lanes, kept[v], k.at(at, v * self.size)) for v in range(self.vectors)]

    def _share(self, best: list[str]) -> list[str]:
        """Scores to shares, in place; their sums."""
        k, spec = self.k, self.spec
        carries = [Carry(type=self.type, start="zeroinitializer")] * self.vectors
        if spec.words and not spec.masked:
            best = [k.binary("fmul", x, grid, self.size) for x, grid in zip(best, self.grids, strict=True)]
            best = [k.binary("fsub", k.splat(-0.0), x, self.size) for x in best]

        def key(index: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            for v, place in enumerate(self._row(self.scores, index)):
                share = self._share_of(place, best[v], v)
                k.store(self.type, share, place, self.size)
                sums[v] = k.binary("fadd", sums[v], share, self.size)
            return sums

        def pair(index: str, sums: list[str], alone: bool = False) -> list[str]:
            sums, given = list(sums), self._row(self.scores, k.mul(index, 2))
            for v, to in enumerate(self._row(self.scores, index)):
                even = self._share_of(given[v], best[v], v)
                odd = "zeroinitializer" if alone else self._share_of(k.at(given[v], self.step), best[v], v)
                shares = pair_products.halves(k, even, odd)
                k.store(f"<{2 * self.lanes} x bfloat>", shares, to, self.size)
                sums[v] = pair_products.dot_halves(k, sums[v], shares, f"splat (bfloat {_ONE})")
            return sums

        if not spec.halves:
            return k.loop(0, spec.keys, 1, key, carries)
        sums = k.loop(0, spec.keys // 2, 1, pair, carries)
        return pair(str(spec.keys // 2), sums, alone=True) if spec.keys % 2 else sums

    def _share_of(self, place: str, best: str, v: int) -> str:
        """2 to the power of a score less the largest; with `words` and no mask, `best` is minus that, in its scale."""
        k, spec = self.k, self.spec
        score = k.load(self.type, place, self.size)
        if spec.words and not spec.masked:
            return exp2(k, k.fma(score, self.grids[v], best, self.size), self.size)
        off = k.binary("fsub", score, best, self.size)
        if spec.masked:  # else it is in the factor; a mask of the least float would overflow by it
            off = k.binary("fmul", off, k.splat(math.log2(math.e)), self.size)
        return exp2(k, off, self.size)

    def _sum(self, values: str, sums: list[str]) -> None:
        k, spec = self.k, self.spec
        if spec.masked:  # the sum is 1 at least, but where no key is left
            sums = [k.largest(k.splat(0.5), total, self.size) for total in sums]
        shares = [k.binary("fdiv", k.splat(1.0), total, self.size) for total in sums]

        def tile(first: str, rows: int, _: list[str]) -> list[str]:
            numbers = k.step(values, first, 4), 4, spec.v_row
            found = self._product(numbers, rows, self.scores, spec.terms, "bf16" if spec.halves else "f32")
            for row in range(rows):
                for v in range(self.vectors):
                    place = k.at(k.step(self.turned, first, self.step), row * self.step + v * self.size)
                    value = k.binary("fmul", found[row * self.vectors + v], shares[v], self.size)
                    k.store(self.type, value, place, self.size)
            return []

        self._tiles(spec.width, [], tile)

    def _turn_back(self, out: str) -> None:
        k, spec = self.k, self.spec
        element = 4 if spec.out == "f32" else 1
        grid = [k.load(self.type, k.at("%params", 64 * index), self.size) for index in (1, 2)]

        def piece(index: str, kept: int) -> None:
            for v in range(self.vectors):
                at = k.step(self.turned, index, self.step)
                columns = [
                    k.load(self.type, k.at(at, min(place, kept - 1) * self.step + v * self.size), self.size)
                    for place in range(self.lanes)
                ]
                for lane, row in enumerate(transpose(k, columns)):
                    if v * self.lanes + lane < self.count:
                        place = k.at(k.step(out, index, element), (v * self.lanes + lane) * spec.out_row)
                        self._store(row, grid, place, kept)

        self._pieces(spec.width, piece)

    def _store(self, row: str, grid: list[str], place: str, kept: int) -> None:
        k, spec, n = self.k, self.spec, self.lanes
        if spec.out == "f32":
            k.store_part("float", n, kept, row, place)
            return
        whole = k.steps(row, (grid[0], grid[1], spec.nan), self.size)
        k.store_part("i8", n, kept, k.clamp_bytes(k.narrow([whole], self.size), spec.low, spec.high, n), place)
