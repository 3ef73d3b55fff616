"""Products of float matrices, for attention: out[..., m, n] = sum over k of a[..., m, k] * b[..., k, n].

The columns of b are dense. Tiles of rows times vectors of columns are summed in registers; what lies behind the last
column is computed, too, and not used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """The shape of one kernel. `batch` are (count, stride in a, in b, in the output); strides are in bytes."""

    batch: tuple[tuple[int, int, int, int], ...]
    rows: int
    inner: int
    columns: int  # a multiple of 16
    a_row: int
    a_inner: int
    b_inner: int
    out_row: int


def blocks(spec: Matmul, machine: Machine) -> list[int]:
    """Vectors of columns that a tile has, for each block of columns."""
    total = spec.columns // machine.floats
    most = 4 if machine.registers > 16 else 2
    return [most] * (total // most) + ([total % most] if total % most else [])


def emit(name: str, spec: Matmul, machine: Machine) -> Kernel:
    """Return the kernel: `a`, `b`, `out`. Work is split by the first dim of the batch."""
    k = Kernel(name, ("a", "b", "out"), machine)

    def nest(depth: int, a: str, b: str, out: str) -> None:
        if depth == len(spec.batch):
            _product(k, spec, a, b, out)
            return
        count, *steps = spec.batch[depth]

        def turn(index: str) -> None:
            nest(depth + 1, *(k.step(base, index, step) for base, step in zip((a, b, out), steps, strict=True)))

        k.each("%y0" if depth == 0 else 0, "%y1" if depth == 0 else count, turn)

    nest(0, "%a", "%b", "%out")
    return k


def _product(k: Kernel, spec: Matmul, a: str, b: str, out: str) -> None:
    widths = blocks(spec, k.machine)
    first = 0
    for vectors in dict.fromkeys(widths):
        count = widths.count(vectors)
        size = vectors * k.machine.width
        height = max(1, min(spec.rows, (k.machine.registers - vectors - 2) // vectors))

        def block(
            index: str, vectors: int = vectors, size: int = size, height: int = height, first: int = first
        ) -> None:
            b_at, out_at = (k.step(k.at(base, first), index, size) for base in (b, out))

            def rows(m: str, height: int) -> None:
                _tile(k, spec, (k.step(a, m, spec.a_row), b_at, k.step(out_at, m, spec.out_row)), height, vectors)

            full = spec.rows // height * height
            k.each(0, full, lambda m: rows(m, height), height)
            if spec.rows > full:
                rows(str(full), spec.rows - full)

        k.each(0, count, block)
        first += count * size


def _tile(k: Kernel, spec: Matmul, places: tuple[str, str, str], height: int, vectors: int) -> None:
    width = k.machine.width
    type_ = f"<{k.machine.floats} x float>"
    a, b, out = places
    zero = Carry(type=type_, start="zeroinitializer")
    pairs = 2 if spec.inner % 2 == 0 else 1

    def body(index: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        for turn in range(pairs):
            a_at = k.at(k.step(a, index, spec.a_inner), turn * spec.a_inner)
            b_at = k.at(k.step(b, index, spec.b_inner), turn * spec.b_inner)
            loaded = [k.load(type_, k.at(b_at, width * v)) for v in range(vectors)]
            for row in range(height):
                factor = k.spread(k.load("float", k.at(a_at, row * spec.a_row), 4), width)
                for v in range(vectors):
                    place = row * vectors + v
                    sums[place] = k.fma(factor, loaded[v], sums[place], width)
        return sums

    sums = k.loop(0, spec.inner, pairs, body, [replace(zero)] * (height * vectors))
    for row in range(height):
        for v in range(vectors):
            k.store(type_, sums[row * vectors + v], k.at(out, row * spec.out_row + width * v))
