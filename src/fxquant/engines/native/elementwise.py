"""Any expression of tensors, element by element: quantize, dequantize, add, mul, activations, copies and broadcasts.

Operands and the result are strided views with the same dims (a stride of 0 broadcasts). The last dim is done in
vectors.
Nothing outside of the views is read or written, so they may lie in memory that belongs to others.

    u8 operand    (q - zero) * scale          u8 result    clamp(round(x / scale) + zero)

Scales, zero points and constants are read from `params`, sixteen times each.

A product of bytes with some that are the same for all pixels (squeeze and excitation) is done for a few channels at a
time, whose factors stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.activations import Act, apply
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

# ("in", index) | ("const", index) | ("add" | "sub" | "mul" | "div" | "max" | "min" | a comparison, a, b)
# | ("act", Act, a) | ("where", a, b, c). What is true or false is 1 or 0.
Expr = tuple[Any, ...]
_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_LARGEST = float(2**30)
_MOST = float(2**21)  # a factor by which one step goes beyond any grid, and 255 of them stay within int32


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """One operand, or the result. Strides are in bytes; the last is that of the dim that is done in vectors."""

    dtype: Literal["u8", "f32"]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return 4 if self.dtype == "f32" else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Elementwise:
    """The shape of one kernel. `copies`: bytes that go on as they are."""

    dims: tuple[int, ...]  # two at least
    operands: tuple[Access, ...]
    out: Access
    expr: Expr
    low: int = 0
    high: int = 255
    nan: int = 0
    copies: bool = False


def count_constants(expr: Expr) -> int:
    """Tell how many constants an expression has."""
    if expr[0] == "const":
        return int(expr[1]) + 1
    return max((count_constants(part) for part in expr[1:] if isinstance(part, tuple)), default=0)


def params(
    grids: Sequence[tuple[float, float] | None], out: tuple[float, float] | None, constants: list[float]
) -> NDArray[np.float32]:
    """Grids of the operands and of the result, then the constants. None is for floats."""
    values: list[float] = []
    for grid in grids:
        values += grid if grid is not None else (1.0, 0.0)
    scale, zero = out if out is not None else (1.0, 0.0)
    return np.repeat(np.array([*values, 1.0 / scale, zero, *constants], np.float32), 16)


def emit(name: str, spec: Elementwise, machine: Machine) -> Kernel:
    """Return the kernel: `in0`, `in1`, ..., `params`, `out`. Rows are the first dim."""
    k = Kernel(name, (*(f"in{index}" for index in range(len(spec.operands))), "params", "out"), machine)
    gate = _gate(spec)
    if gate is not None:
        _gated(k, spec, gate)
        return k
    outer = spec.dims[:-1]

    def nest(depth: int, bases: list[str], out: str) -> None:
        if depth == len(outer):
            _inner(k, spec, bases, out)
            return

        def turn(index: str) -> None:
            moved = [
                k.step(base, index, operand.strides[depth]) for base, operand in zip(bases, spec.operands, strict=True)
            ]
            nest(depth + 1, moved, k.step(out, index, spec.out.strides[depth]))

        k.each("%y0" if depth == 0 else 0, "%y1" if depth == 0 else outer[depth], turn)

    nest(0, [f"%in{index}" for index in range(len(spec.operands))], "%out")
    return k


def _gate(spec: Elementwise) -> int | None:
    """Return which factor of a product of bytes is the same for all pixels, if one is and there are whole vectors."""
    bytes_ = all(access.dtype == "u8" and access.strides[-1] == 1 for access in (*spec.operands, spec.out))
    if not bytes_ or spec.expr != ("mul", ("in", 0), ("in", 1)) or spec.dims[-1] % 16:
        return None
    return next((index for index in (0, 1) if not any(spec.operands[index].strides[:-1])), None)


def _gated(k: Kernel, spec: Elementwise, gate: int) -> None:
    done = 0
    for width in (64, 32, 16):
        if width <= k.machine.width:
            count = (spec.dims[-1] - done) // width

            def channels(at: str, width: int = width) -> None:
                _gated_channels(k, spec, gate, at, width)

            k.each(done, done + count * width, channels, width)
            done += count * width


def _gated_channels(k: Kernel, spec: Elementwise, gate: int, at: str, width: int) -> None:
    """All pixels of `width` channels: (q - zero) * factor + zero of the output."""
    scales, zeros, n = [], [], width // 4
    for index in range(3):
        scale, zero = (k.load(f"<{n} x float>", k.at("%params", 64 * (2 * index + j)), width) for j in (0, 1))
        scales.append(scale)
        zeros.append(zero)
    unit = k.binary("fmul", k.binary("fmul", scales[0], scales[1], width), scales[2], width)
    factors = []
    for vector in k.widen(k.at(f"%in{gate}", at), 4, width):
        factor = k.binary("fmul", k.binary("fsub", k.to_float(vector, width), zeros[gate], width), unit, width)
        factors.append(k.largest(k.splat(-_MOST), k.least(k.splat(_MOST), factor, width), width))
    source = spec.operands[1 - gate]

    def nest(depth: int, x: str, out: str) -> None:
        if depth < len(spec.dims) - 1:
            low, high = ("%y0", "%y1") if depth == 0 else (0, spec.dims[depth])
            k.each(
                low,
                high,
                lambda index: nest(
                    depth + 1, k.step(x, index, source.strides[depth]), k.step(out, index, spec.out.strides[depth])
                ),
            )
            return
        rounded = []
        for vector, factor in zip(k.widen(x, 4, width), factors, strict=True):
            centred = k.binary("fsub", k.to_float(vector, width), zeros[1 - gate], width)
            rounded.append(k.round(k.fma(centred, factor, zeros[2], width), width))
        k.store(f"<{width} x i8>", k.clamp_bytes(k.narrow(rounded, width), spec.low, spec.high, width), out)

    nest(0, k.at(f"%in{1 - gate}", at), k.at("%out", at))


def _inner(k: Kernel, spec: Elementwise, bases: list[str], out: str) -> None:
    total = spec.dims[-1]
    accesses = (*spec.operands, spec.out)
    if spec.copies and all(access.strides[-1] == access.size for access in accesses):
        k.call("llvm.memcpy.p0.p0.i64", out, bases[0], str(total * spec.out.size), "false")
        return
    wide = all(access.dtype == "u8" and access.strides[-1] == 1 for access in accesses)
    count = k.machine.width if wide else k.machine.floats  # elements of a turn
    parts = 4 if wide else 1

    def turn(index: str, kept: int) -> None:
        moved = [k.step(base, index, operand.strides[-1]) for base, operand in zip(bases, spec.operands, strict=True)]
        _vectors(k, spec, moved, k.step(out, index, spec.out.strides[-1]), parts, kept)

    full = total // count * count
    k.each(0, full, lambda index: turn(index, count), count)
    rest, at = total - full, full
    while wide and rest >= k.machine.floats:  # the rest of bytes in single vectors
        parts, single = 1, k.machine.floats
        turn(str(at), single)
        at, rest = at + single, rest - single
    if rest:
        parts = 1
        turn(str(at), rest)


def _vectors(k: Kernel, spec: Elementwise, bases: list[str], out: str, parts: int, kept: int) -> None:
    """One turn: `kept` elements, in as many vectors as `parts`."""
    width = k.machine.width
    operands = [
        _load(k, index, operand, base, parts, kept)
        for index, (operand, base) in enumerate(zip(spec.operands, bases, strict=True))
    ]
    first = 2 * len(spec.operands)
    results = [_evaluate(k, spec.expr, [operand[part] for operand in operands], first + 2) for part in range(parts)]
    n = width // 4
    if spec.out.dtype == "f32":
        _store(k, "float", results[0], out, spec.out.strides[-1], kept)
        return
    inverse, zero = (_param(k, first + offset) for offset in (0, 1))
    rounded = [k.steps(x, (inverse, zero, spec.nan), width) for x in results]
    size = n * parts
    packed = k.clamp_bytes(k.narrow(rounded, width), spec.low, spec.high, size)
    if parts == 4:
        k.store(f"<{size} x i8>", packed, out)
    else:
        _store(k, "i8", packed, out, spec.out.strides[-1], kept)


def _param(k: Kernel, index: int) -> str:
    return k.load(f"<{k.machine.floats} x float>", k.at("%params", 64 * index), k.machine.width)


def _load(k: Kernel, index: int, operand: Access, base: str, parts: int, kept: int) -> list[str]:
    """Return an operand as floats, in one vector or in four."""
    width, n = k.machine.width, k.machine.floats
    type_ = "float" if operand.dtype == "f32" else "i8"
    stride = operand.strides[-1]
    if parts == 4:
        wide = k.widen(base, 4, width)
    elif stride == operand.size:
        wide = [k.load_part(type_, n, kept, base)]
    else:
        wide = [_gather(k, type_, base, stride, kept)]
    if operand.dtype == "f32":
        return wide
    if parts == 1:
        wide = [k.value(f"zext <{n} x i8> {wide[0]} to <{n} x i32>")]
    scale, zero = _param(k, 2 * index), _param(k, 2 * index + 1)
    return [k.binary("fmul", k.binary("fsub", k.to_float(vector, width), zero, width), scale, width) for vector in wide]


def _gather(k: Kernel, type_: str, base: str, stride: int, kept: int) -> str:
    n = k.machine.floats
    if stride == 0:
        one = k.value(f"insertelement <{n} x {type_}> poison, {type_} {k.load(type_, base)}, i64 0")
        return k.value(f"shufflevector <{n} x {type_}> {one}, <{n} x {type_}> poison, <{n} x i32> zeroinitializer")
    found = "zeroinitializer"
    for lane in range(kept):
        one = k.load(type_, k.at(base, lane * stride))
        found = k.value(f"insertelement <{n} x {type_}> {found}, {type_} {one}, i64 {lane}")
    return found


def _store(k: Kernel, type_: str, value: str, base: str, stride: int, kept: int) -> None:
    n = k.machine.floats
    if stride == (4 if type_ == "float" else 1):
        k.store_part(type_, n, kept, value, base)
        return
    for lane in range(kept):
        one = k.value(f"extractelement <{n} x {type_}> {value}, i64 {lane}")
        k.store(type_, one, k.at(base, lane * stride))


def _evaluate(k: Kernel, expr: Expr, operands: list[str], constants: int) -> str:
    width = k.machine.width
    if expr[0] == "in":
        return operands[expr[1]]
    if expr[0] == "const":
        return _param(k, constants + expr[1])
    if expr[0] == "act":
        assert isinstance(expr[1], Act)
        return apply(k, expr[1], _evaluate(k, expr[2], operands, constants), width)
    a, b, *rest = (_evaluate(k, part, operands, constants) for part in expr[1:])
    if expr[0] == "where":
        return _choose(k, k.value(f"fcmp une <{k.machine.floats} x float> {a}, zeroinitializer"), b, rest[0])
    if expr[0] in COMPARISONS:
        holds = k.value(f"fcmp {COMPARISONS[expr[0]]} <{k.machine.floats} x float> {a}, {b}")
        return _choose(k, holds, k.splat(1.0), "zeroinitializer")
    if expr[0] in ("max", "min"):
        return k.largest(a, b, width) if expr[0] == "max" else k.least(a, b, width)
    return k.binary(_OPS[expr[0]], a, b, width)


def _choose(k: Kernel, holds: str, yes: str, no: str) -> str:
    n = k.machine.floats
    return k.value(f"select <{n} x i1> {holds}, <{n} x float> {yes}, <{n} x float> {no}")
