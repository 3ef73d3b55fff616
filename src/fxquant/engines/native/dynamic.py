"""Tensors on the grid of their own range, found in every call, and what a product with them is scaled by.

quantize   scale = max((high - low) / most, least), zero = round(-low / scale), of the range with 0 in it
           symmetric: scale = max(|x|) / (most / 2), zero in the middle
           q = clamp(round(x / scale) + zero, 0, most)
affine     params = scale * a + scale * (shift - zero) * b + c, element by element: scales and biases of a gemm
"""

from __future__ import annotations

from dataclasses import dataclass

from fxquant.engines.native.ir import Carry, number
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_LARGEST = float(2**30)
GRID_FLOATS = 16  # scale, zero, and room to the next 64 bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRange:
    """The shape of one kernel: `dims` are (count, stride of the input, of the output), in bytes, of dense rows."""

    dims: tuple[tuple[int, int, int], ...]
    length: int
    most: int
    least: float
    symmetric: bool


def quantize(name: str, spec: OwnRange, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `grid` (scale and zero, which it writes), `out`."""
    k = Kernel(name, ("x", "grid", "out"), machine)
    scale, zero = _write_grid(k, spec, _range(k, spec))
    n, width = machine.floats, machine.width
    inverse = k.spread(k.value(f"fdiv float {number(1.0)}, {scale}"), width)
    whole = k.round(k.spread(zero, width), width)

    def turn(x: str, out: str, index: str, kept: int) -> None:
        value = k.binary("fmul", k.load_part("float", n, kept, k.step(x, index, 4)), inverse, width)
        steps = k.round(k.least(k.splat(_LARGEST), value, width), width)
        packed = k.narrow([k.value(f"add <{n} x i32> {steps}, {whole}")], width)
        k.store_part("i8", n, kept, k.clamp_bytes(packed, 0, spec.most, n), k.step(out, index, 1))

    def nest(depth: int, x: str, out: str) -> None:
        if depth < len(spec.dims):
            count, in_step, out_step = spec.dims[depth]
            k.each(0, count, lambda i: nest(depth + 1, k.step(x, i, in_step), k.step(out, i, out_step)))
            return
        k.each_part(spec.length, lambda index, kept: turn(x, out, index, kept))

    nest(0, "%x", "%out")
    return k


def _range(k: Kernel, spec: OwnRange) -> tuple[str, str, str]:
    """(largest x, largest -x, 0 or not a number if one of them is not finite), with 0 in the range."""
    n, width = k.machine.floats, k.machine.width
    type_ = f"<{n} x float>"

    def turn(x: str, index: str, kept: int, values: list[str]) -> list[str]:
        high, low, odd = values
        value = k.load_part("float", n, kept, k.step(x, index, 4))
        off = k.binary("fsub", value, value, width)
        minus = k.value(f"fneg {type_} {value}")
        return [k.largest(high, value, width), k.largest(low, minus, width), k.binary("fadd", odd, off, width)]

    def nest(depth: int, x: str, values: list[str]) -> list[str]:
        carries = [Carry(type=type_, start=value) for value in values]
        if depth < len(spec.dims):
            count, step, _ = spec.dims[depth]
            return k.loop(0, count, 1, lambda i, inside: nest(depth + 1, k.step(x, i, step), inside), carries)
        full = spec.length // n * n
        if full:
            values = k.loop(0, full, n, lambda index, inside: turn(x, index, n, inside), carries)
        return turn(x, str(full), spec.length - full, values) if spec.length > full else values

    high, low, odd = nest(0, "%x", ["zeroinitializer"] * 3)
    k.used.add(f"llvm.vector.reduce.fmax.v{n}f32")
    ends = [k.value(f"call float @llvm.vector.reduce.fmax.v{n}f32({type_} {end})") for end in (high, low)]
    return ends[0], ends[1], k.total(odd, width)


def _write_grid(k: Kernel, spec: OwnRange, found: tuple[str, str, str]) -> tuple[str, str]:
    high, low, odd = found
    if spec.symmetric:
        higher = k.value(f"fcmp ogt float {high}, {low}")
        span = k.value(f"select i1 {higher}, float {high}, float {low}")
        parts = spec.most / 2
    else:
        span, parts = k.value(f"fadd float {high}, {low}"), float(spec.most)
    scale = k.value(f"fdiv float {span}, {number(parts)}")
    enough = k.value(f"fcmp ogt float {scale}, {number(spec.least)}")
    scale = k.value(f"select i1 {enough}, float {scale}, float {number(spec.least)}")
    scale = k.value(f"fadd float {scale}, {odd}")
    if spec.symmetric:
        zero = number(float((spec.most + 1) // 2))
    else:
        n, width = k.machine.floats, k.machine.width
        steps = k.round(k.spread(k.value(f"fdiv float {low}, {scale}"), width), width)
        steps = k.call(f"llvm.smax.v{n}i32", steps, "zeroinitializer")
        steps = k.call(f"llvm.smin.v{n}i32", steps, f"splat (i32 {spec.most})")
        zero = k.value(f"extractelement <{n} x float> {k.to_float(steps, width)}, i64 0")
    k.store("float", scale, "%grid", 4)
    k.store("float", zero, k.at("%grid", 4), 4)
    return scale, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """How many floats there are, a multiple of 16; `shift` is what the machine takes from activations."""

    size: int
    shift: int


def affine(name: str, spec: Affine, machine: Machine) -> Kernel:
    """Return the kernel: `grid`, `parts` (a, b and c, one behind the other), `out`."""
    k = Kernel(name, ("grid", "parts", "out"), machine)
    n, width = machine.floats, machine.width
    type_ = f"<{n} x float>"
    scale = k.load("float", "%grid", 4)
    off = k.value(f"fsub float {number(float(spec.shift))}, {k.load('float', k.at('%grid', 4), 4)}")
    scales, moves = k.spread(scale, width), k.spread(k.value(f"fmul float {scale}, {off}"), width)

    def turn(index: str) -> None:
        a, b, c = (k.load(type_, k.step(k.at("%parts", 4 * spec.size * part), index, 4), width) for part in range(3))
        k.store(type_, k.fma(scales, a, k.fma(moves, b, c, width), width), k.step("%out", index, 4), width)

    k.each(0, spec.size, turn, n)
    return k
