"""Attention in one kernel: softmax(q k^T * scale + mask) v, whose scores stay in the first cache.

The elements of a vector are queries. Scores and shares lie with the keys in front, so largest scores and sums are found
without looking across a vector, and keys and values are read where they are, one number at a time:

    turned[d] = q[., d] * factor        score[t] = turned[d] * k[t, d] + ... (+ mask[t])
    share[t]  = 2**(score[t] - max)     out[., d] = (share[t] * v[t, d] + ...) / sum, turned back

A block is two vectors of queries; work is split by blocks, for all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native.activations import exp2
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel, even_parts, indices

VECTORS = 2
_LARGEST = float(2**30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The shape of one kernel. `heads` are (count, strides of q, k, v, mask, output); strides are in bytes.

    Rows are dense. A mask has a number for each key, the same for all queries.
    """

    heads: tuple[tuple[int, int, int, int, int, int], ...]
    queries: int
    keys: int
    depth: int  # of queries and keys
    width: int  # of values
    q_row: int
    k_row: int
    v_row: int
    out_row: int
    masked: bool
    out: Literal["u8", "f32"] = "f32"
    low: int = 0
    high: int = 255
    nan: int = 0

    def blocks(self, machine: Machine) -> int:
        return -(-self.queries // (VECTORS * machine.floats))

    def scratch(self, machine: Machine) -> int:
        """Bytes that each block may use."""
        turned = -(-max(self.depth, self.width) // machine.floats) * machine.floats
        return (turned + self.keys) * VECTORS * machine.width


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
        _Block(k, spec, count, scratch).write(first, keys, values, mask, last)

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
        self.step = self.vectors * self.size  # from one key, or dimension, to the next
        self.turned = scratch
        self.scores = k.at(scratch, spec.scratch(k.machine) - spec.keys * VECTORS * self.size)

    def write(self, q: str, keys: str, values: str, mask: str, out: str) -> None:
        self._turn(q)
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

    def _product(self, numbers: tuple[str, int, int], rows: int, vectors: str, count: int) -> list[str]:
        """Sums over `count` of a number, for each row, times the vectors. `numbers`: address, strides of row, sum."""
        k = self.k
        address, row_step, inner = numbers
        zero = [Carry(type=self.type, start="zeroinitializer")] * (rows * self.vectors)

        def body(index: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            at, place = k.step(vectors, index, self.step), k.step(address, index, inner)
            loaded = [k.load(self.type, k.at(at, v * self.size), self.size) for v in range(self.vectors)]
            for row in range(rows):
                one = k.spread(k.load("float", k.at(place, row * row_step), 4), self.size)
                for v in range(self.vectors):
                    sums[row * self.vectors + v] = k.fma(one, loaded[v], sums[row * self.vectors + v], self.size)
            return sums

        return k.loop(0, count, 1, body, zero)

    def _score(self, keys: str, mask: str) -> list[str]:
        k, spec = self.k, self.spec

        def tile(first: str, rows: int, best: list[str]) -> list[str]:
            best = list(best)
            at = k.step(keys, first, spec.k_row)
            sums = self._product((at, spec.k_row, 4), rows, self.turned, spec.depth)
            for row in range(rows):
                if spec.masked:
                    added = k.spread(k.load("float", k.at(k.step(mask, first, 4), 4 * row), 4), self.size)
                for v in range(self.vectors):
                    score = sums[row * self.vectors + v]
                    if spec.masked:
                        score = k.binary("fadd", score, added, self.size)
                    best[v] = k.largest(best[v], score, self.size)
                    place = k.at(k.step(self.scores, first, self.step), row * self.step + v * self.size)
                    k.store(self.type, score, place, self.size)
            return best

        return self._tiles(spec.keys, [k.splat(-math.inf)] * self.vectors, tile)

    def _share(self, best: list[str]) -> list[str]:
        k = self.k
        carries = [Carry(type=self.type, start="zeroinitializer")] * self.vectors

        def key(index: str, sums: list[str]) -> list[str]:
            sums = list(sums)
            for v in range(self.vectors):
                place = k.at(k.step(self.scores, index, self.step), v * self.size)
                off = k.binary("fsub", k.load(self.type, place, self.size), best[v], self.size)
                if self.spec.masked:  # else it is in the factor; a mask of the least float would overflow by it
                    off = k.binary("fmul", off, k.splat(math.log2(math.e)), self.size)
                share = exp2(k, off, self.size)
                k.store(self.type, share, place, self.size)
                sums[v] = k.binary("fadd", sums[v], share, self.size)
            return sums

        return k.loop(0, self.spec.keys, 1, key, carries)

    def _sum(self, values: str, sums: list[str]) -> None:
        k, spec = self.k, self.spec
        shares = [k.binary("fdiv", k.splat(1.0), total, self.size) for total in sums]

        def tile(first: str, rows: int, _: list[str]) -> list[str]:
            found = self._product((k.step(values, first, 4), 4, spec.v_row), rows, self.scores, spec.keys)
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


def transpose(k: Kernel, rows: list[str]) -> list[str]:
    """A square of floats, as many rows as a vector has elements, with rows and columns swapped."""
    n = len(rows)
    bit = 1
    while bit < n:
        low = indices([lane if not lane & bit else n + (lane ^ bit) for lane in range(n)])
        high = indices([lane | bit if not lane & bit else n + lane for lane in range(n)])
        made = list(rows)
        for row in range(n):
            if not row & bit:
                both = f"<{n} x float> {rows[row]}, <{n} x float> {rows[row | bit]}"
                made[row] = k.value(f"shufflevector {both}, {low}")
                made[row | bit] = k.value(f"shufflevector {both}, {high}")
        rows, bit = made, 2 * bit
    return rows
