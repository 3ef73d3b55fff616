"""Softmax and layer norm: kernels that look at a whole row of floats.

    softmax      exp(scale x - max) / sum; with `masked`, 0 where all of a row is -inf
    layer norm   (x - mean) / sqrt(var + eps) * weight + bias, as floats or, with weight and bias in steps, on a grid

A row is dense; the rows are up to three strided dims. Short rows are written out, longer ones
go four vectors at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fxquant.engines.native.activations import exp
from fxquant.engines.native.ir import Carry, number
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel, indices

_LARGEST = float(2**30)
_LOWEST = -3.4028234663852886e38
_WAYS, _SHORT = 4, 16  # vectors in a turn of a loop, and in a row that has none


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The shape of one kernel. `dims` are (count, stride of the input, of the output), in bytes."""

    kind: Literal["softmax", "layer_norm"]
    dims: tuple[tuple[int, int, int], ...]
    length: int
    eps: float = 0.0
    masked: bool = False
    out: Literal["u8", "f32"] = "f32"
    low: int = 0
    high: int = 255
    nan: int = 0


def emit(name: str, spec: Rows, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `params` (scale, sixteen times; or weight and bias), `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)
    row = _softmax if spec.kind == "softmax" else _layer_norm
    each_row(k, spec.dims, lambda x, out: row(Row(k, spec, x, out), spec))
    return k


def each_row(k: Kernel, dims: tuple[tuple[int, int, int], ...], row: Callable[[str, str], None]) -> None:
    """row(address in `x`, address in `out`), for all rows. `dims` are those of `Rows`."""

    def nest(depth: int, x: str, out: str) -> None:
        if depth == len(dims):
            row(x, out)
            return
        count, x_step, out_step = dims[depth]

        def turn(index: str) -> None:
            nest(depth + 1, k.step(x, index, x_step), k.step(out, index, out_step))

        k.each("%y0" if depth == 0 else 0, "%y1" if depth == 0 else count, turn)

    nest(0, "%x", "%out")


class HasLength(Protocol):
    """Tells how many elements a row has."""

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class At:
    """A vector of a row: where it begins, in elements from a turn's beginning, and how many elements it has."""

    index: str
    offset: int
    kept: int


class Row:
    """The code of one row."""

    def __init__(self, k: Kernel, spec: HasLength, x: str, out: str) -> None:
        self.k, self.length, self.x, self.out = k, spec.length, x, out
        self.n, self.width = k.machine.floats, k.machine.width

    def place(self, base: str, at: At, element: int = 4) -> str:
        return self.k.at(self.k.step(base, at.index, element), at.offset * element)

    def load(self, base: str, at: At) -> str:
        return self.k.load_part("float", self.n, at.kept, self.place(base, at))

    def kept(self, at: At, yes: str, no: str) -> str:
        """`yes` where there are elements, `no` behind them."""
        if at.kept == self.n:
            return yes
        flags = ", ".join(f"i1 {int(lane < at.kept)}" for lane in range(self.n))
        return self.k.value(f"select <{self.n} x i1> <{flags}>, <{self.n} x float> {yes}, <{self.n} x float> {no}")

    def groups(self, visit: Callable[[list[At]], None]) -> None:
        """visit(some vectors), until all were visited."""

        def turn(group: list[At], values: list[str]) -> list[str]:
            visit(group)
            return values

        self._walk([], turn)

    def reduce(self, start: str, turn: Callable[[At, str], str], merge: Callable[[str, str], str]) -> str:
        """One vector of what `turn` makes of all vectors; several are made side by side, and merged."""

        def visit(group: list[At], values: list[str]) -> list[str]:
            made = [turn(at, value) for at, value in zip(group, values, strict=False)]
            return [*made, *values[len(made) :]]

        values = self._walk([start] * _WAYS, visit)
        while len(values) > 1:
            values = [*map(merge, values[::2], values[1::2])]
        return values[0]

    def _walk(self, start: list[str], visit: Callable[[list[At], list[str]], list[str]]) -> list[str]:
        n, vectors = self.n, self.length // self.n
        values, done = start, 0
        if vectors > _SHORT:
            done = vectors // _WAYS * _WAYS
            carries = [Carry(type=f"<{n} x float>", start=value) for value in start]

            def turn(index: str, inside: list[str]) -> list[str]:
                return visit([At(index, n * way, n) for way in range(_WAYS)], inside)

            values = self.k.loop(0, done * n, _WAYS * n, turn, carries)
        rest = [At("0", n * vector, n) for vector in range(done, vectors)]
        if self.length > vectors * n:
            rest.append(At("0", n * vectors, self.length - n * vectors))
        for first in range(0, len(rest), _WAYS):
            values = visit(rest[first : first + _WAYS], values)
        return values


def _softmax(row: Row, spec: Rows) -> None:
    k, n, width = row.k, row.n, row.width
    scale = k.load(f"<{n} x float>", "%params", width)

    def scaled(at: At) -> str:
        return row.kept(at, k.binary("fmul", row.load(row.x, at), scale, width), k.splat(-math.inf))

    best = row.reduce(
        k.splat(-math.inf),
        lambda at, value: k.largest(value, scaled(at), width),
        lambda a, b: k.largest(a, b, width),
    )
    k.used.add(f"llvm.vector.reduce.fmax.v{n}f32")
    top = k.value(f"call float @llvm.vector.reduce.fmax.v{n}f32(<{n} x float> {best})")
    peak = k.spread(top, width)
    if spec.masked:
        peak = k.largest(peak, k.splat(_LOWEST), width)

    def power(at: At, total: str) -> str:
        value = exp(k, k.binary("fsub", scaled(at), peak, width), width)
        k.store_part("float", n, at.kept, value, row.place(row.out, at))
        return k.binary("fadd", total, row.kept(at, value, "zeroinitializer"), width)

    total = row.reduce("zeroinitializer", power, lambda a, b: k.binary("fadd", a, b, width))
    if spec.masked:  # the sum is 1 at least, but where all is -inf
        share = k.binary(
            "fdiv", k.splat(1.0), k.largest(k.splat(0.5), k.spread(k.total(total, width), width), width), width
        )
    else:
        share = k.spread(k.value(f"fdiv float {number(1.0)}, {k.total(total, width)}"), width)

    def divide(group: list[At]) -> None:
        for at in group:
            value = k.binary("fmul", row.load(row.out, at), share, width)
            k.store_part("float", n, at.kept, value, row.place(row.out, at))

    row.groups(divide)


def _layer_norm(row: Row, spec: Rows) -> None:
    k, n, width = row.k, row.n, row.width
    padded = -(-spec.length // 16) * 64  # bytes of a parameter

    def mean(start: str, turn: Callable[[At, str], str]) -> str:
        total = k.total(row.reduce(start, turn, lambda a, b: k.binary("fadd", a, b, width)), width)
        return k.value(f"fmul float {total}, {number(1.0 / spec.length)}")

    def add(at: At, total: str) -> str:
        return k.binary("fadd", total, row.load(row.x, at), width)

    middle = k.spread(mean("zeroinitializer", add), width)

    def square(at: At, total: str) -> str:
        off = row.kept(at, k.binary("fsub", row.load(row.x, at), middle, width), "zeroinitializer")
        return k.fma(off, off, total, width)

    spread = k.spread(k.value(f"fadd float {mean('zeroinitializer', square)}, {number(spec.eps)}"), 16)
    inverse = k.binary("fdiv", k.splat(1.0), k.call("llvm.sqrt.v4f32", spread), 16)
    root = k.spread(k.value(f"extractelement <4 x float> {inverse}, i64 0"), width)

    def normal(at: At) -> str:
        off = k.binary("fmul", k.binary("fsub", row.load(row.x, at), middle, width), root, width)
        weight, bias = (row.load(k.at("%params", offset), at) for offset in (0, padded))
        return k.fma(off, weight, bias, width)

    def write(group: list[At]) -> None:
        values = [normal(at) for at in group]
        if spec.out == "f32":
            for at, value in zip(group, values, strict=True):
                k.store_part("float", n, at.kept, value, row.place(row.out, at))
            return
        if spec.nan:
            values = [k.or_else(value, k.splat(float(spec.nan)), width) for value in values]
        steps = [k.round(k.least(k.splat(_LARGEST), value, width), width) for value in values]
        if len(group) == _WAYS and group[-1].kept == n:
            packed = k.clamp_bytes(_in_order(k, k.narrow(steps, width), width), spec.low, spec.high, width)
            k.store(f"<{width} x i8>", packed, row.place(row.out, group[0], 1))
            return
        for at, step in zip(group, steps, strict=True):
            packed = k.clamp_bytes(k.narrow([step], width), spec.low, spec.high, n)
            k.store_part("i8", n, at.kept, packed, row.place(row.out, at, 1))

    row.groups(write)


def _in_order(k: Kernel, packed: str, width: int) -> str:
    """Bytes of four vectors that were packed inside of lanes, one vector behind the other."""
    lanes = width // 16
    if lanes == 1:
        return packed
    fours = f"<{width // 4} x i32>"
    words = k.value(f"bitcast <{width} x i8> {packed} to {fours}")
    order = indices([4 * lane + vector for vector in range(4) for lane in range(lanes)])
    return k.value(
        f"bitcast {fours} {k.value(f'shufflevector {fours} {words}, {fours} poison, {order}')} to <{width} x i8>"
    )
