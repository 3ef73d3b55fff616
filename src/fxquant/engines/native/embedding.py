"""Rows of a table by their numbers, as floats.

    out[i] = table[ids[i]] * scales[ids[i]]      or the row itself, where the table holds floats

A number that the table has no row for is told by a word that is not 0, and row 0 is taken: see Program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """The shape of one kernel: so many ids, and a table of so many rows. Strides are in bytes."""

    ids: int
    id_type: Literal["i64", "i32"]
    rows: int
    width: int
    integers: bool  # int8 with a scale for each row
    out_row: int


def emit(name: str, spec: Embedding, machine: Machine) -> Kernel:
    """Return the kernel: `ids`, `table`, `scales` (or the table again), `missing`, `out`. Rows are ids."""
    k = Kernel(name, ("ids", "table", "scales", "missing", "out"), machine)
    n, width = machine.floats, machine.width

    def turn(index: str) -> None:
        number = k.load(spec.id_type, k.step("%ids", index, 8 if spec.id_type == "i64" else 4))
        wide = number if spec.id_type == "i64" else k.value(f"sext i32 {number} to i64")
        known = k.value(f"icmp ult i64 {wide}, {spec.rows}")  # negative ones are large, then
        unknown = k.value(f"xor i1 {known}, true")
        k.when(unknown, lambda: k.store("i64", "1", "%missing", 8))
        row = k.value(f"select i1 {known}, i64 {wide}, i64 0")
        out = k.step("%out", index, spec.out_row)
        if not spec.integers:
            k.call("llvm.memcpy.p0.p0.i64", out, k.step("%table", row, 4 * spec.width), str(4 * spec.width), "false")
            return
        start = k.step("%table", row, spec.width)
        scale = k.spread(k.load("float", k.step("%scales", row, 4), 4), width)

        def columns(at: str, kept: int) -> None:
            values = k.load_part("i8", n, kept, k.at(start, at))
            floats = k.value(f"sitofp <{n} x i8> {values} to <{n} x float>")
            k.store_part("float", n, kept, k.binary("fmul", floats, scale, width), k.step(out, at, 4))

        k.each_part(spec.width, columns)

    k.each("%y0", "%y1", turn)
    return k
