"""One number of each row of floats: its sum, its largest or smallest element, the sum of squares.

    sum      factor * sum(x)                  squares       factor * sum(x^2)
    max      the largest, NaN if one is       deviations    factor * sum((x - mean)^2)

A row is dense; rows are strided dims, as those of rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native.ir import number
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.rows import At, Row, each_row
from fxquant.engines.native.vector import Kernel, indices

Kind = Literal["sum", "squares", "deviations", "max", "min"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The shape of one kernel. `dims` are (count, stride of the input, of the output), in bytes."""

    kind: Kind
    dims: tuple[tuple[int, int, int], ...]
    length: int
    factor: float = 1.0


def emit(name: str, spec: Reduction, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `out`."""
    k = Kernel(name, ("x", "out"), machine)
    one = _extreme if spec.kind in ("max", "min") else _sum
    each_row(k, spec.dims, lambda x, out: k.store("float", one(Row(k, spec, x, out), spec), out, 4))
    return k


def _sum(row: Row, spec: Reduction) -> str:
    k, width = row.k, row.width
    middle = ""
    if spec.kind == "deviations":
        total = _total(row, lambda at, value: k.binary("fadd", value, row.load(row.x, at), width))
        middle = k.spread(k.value(f"fmul float {total}, {number(1.0 / spec.length)}"), width)

    def add(at: At, value: str) -> str:
        x = row.load(row.x, at)
        if middle:
            x = row.kept(at, k.binary("fsub", x, middle, width), "zeroinitializer")
        return k.binary("fadd", value, x, width) if spec.kind == "sum" else k.fma(x, x, value, width)

    return k.value(f"fmul float {_total(row, add)}, {number(spec.factor)}")


def _total(row: Row, add: Callable[[At, str], str]) -> str:
    k, width = row.k, row.width
    return k.total(row.reduce("zeroinitializer", add, lambda a, b: k.binary("fadd", a, b, width)), width)


def _extreme(row: Row, spec: Reduction) -> str:
    k, n = row.k, row.n
    compare = "ugt" if spec.kind == "max" else "ult"

    def pick(a: str, b: str) -> str:
        """The better one; what is not a number is better than all."""
        better = k.value(f"fcmp {compare} <{n} x float> {a}, {b}")
        one = k.value(f"select <{n} x i1> {better}, <{n} x float> {a}, <{n} x float> {b}")
        known = k.value(f"fcmp ord <{n} x float> {b}, {b}")
        return k.value(f"select <{n} x i1> {known}, <{n} x float> {one}, <{n} x float> {b}")

    start = k.splat(-math.inf if spec.kind == "max" else math.inf)
    found = row.reduce(start, lambda at, value: pick(value, row.kept(at, row.load(row.x, at), start)), pick)
    half = n // 2
    while half:
        order = indices([(lane + half) % n for lane in range(n)])
        found = pick(found, k.value(f"shufflevector <{n} x float> {found}, <{n} x float> poison, {order}"))
        half //= 2
    return k.value(f"extractelement <{n} x float> {found}, i64 0")
