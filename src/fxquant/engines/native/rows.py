"""Softmax and layer norm: kernels that look at a whole row of floats.

    softmax      exp(scale x - max) / sum
    layer norm   (x - mean) / sqrt(var + eps) * weight + bias, as floats or on a grid

A row is dense; the rows are up to three strided dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native.activations import exp
from fxquant.engines.native.ir import Carry, number
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_LARGEST = float(2**30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The shape of one kernel. `dims` are (count, stride of the input, of the output), in bytes."""

    kind: Literal["softmax", "layer_norm"]
    dims: tuple[tuple[int, int, int], ...]
    length: int
    eps: float = 0.0
    out: Literal["u8", "f32"] = "f32"
    low: int = 0
    high: int = 255


def emit(name: str, spec: Rows, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `params` (scale, sixteen times; or weight, bias, and 1 / scale and zero), `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)
    row = _softmax if spec.kind == "softmax" else _layer_norm

    def nest(depth: int, x: str, out: str) -> None:
        if depth == len(spec.dims):
            row(k, spec, x, out)
            return
        count, x_step, out_step = spec.dims[depth]

        def turn(index: str) -> None:
            nest(depth + 1, k.step(x, index, x_step), k.step(out, index, out_step))

        k.each("%y0" if depth == 0 else 0, "%y1" if depth == 0 else count, turn)

    nest(0, "%x", "%out")
    return k


Turn = Callable[[str, int, list[str]], list[str]]


def _sweep(k: Kernel, spec: Rows, turn: Turn, start: list[str]) -> list[str]:
    """turn(index, elements, values) over the vectors of a row; the last may have fewer elements."""
    n = k.machine.floats
    type_ = f"<{n} x float>"
    full = spec.length // n * n
    values = start
    if full:
        carries = [Carry(type=type_, start=value) for value in start]
        values = k.loop(0, full, n, lambda index, inside: turn(index, n, inside), carries)
    return turn(str(full), spec.length - full, values) if spec.length > full else values


def _mask(k: Kernel, kept: int, yes: str, no: str) -> str:
    """`yes` where there are elements, `no` behind them."""
    n = k.machine.floats
    if kept == n:
        return yes
    flags = ", ".join(f"i1 {int(lane < kept)}" for lane in range(n))
    return k.value(f"select <{n} x i1> <{flags}>, <{n} x float> {yes}, <{n} x float> {no}")


def _softmax(k: Kernel, spec: Rows, x: str, out: str) -> None:
    n, width = k.machine.floats, k.machine.width
    scale = k.load(f"<{n} x float>", "%params", width)

    def scaled(index: str, kept: int) -> str:
        value = k.binary("fmul", k.load_part("float", n, kept, k.step(x, index, 4)), scale, width)
        return _mask(k, kept, value, k.splat(-math.inf))

    def largest(index: str, kept: int, values: list[str]) -> list[str]:
        return [k.largest(values[0], scaled(index, kept), width)]

    best = _sweep(k, spec, largest, [k.splat(-math.inf)])[0]
    k.used.add(f"llvm.vector.reduce.fmax.v{n}f32")
    top = k.value(f"call float @llvm.vector.reduce.fmax.v{n}f32(<{n} x float> {best})")
    peak = k.spread(top, width)

    def powers(index: str, kept: int, values: list[str]) -> list[str]:
        power = exp(k, k.binary("fsub", scaled(index, kept), peak, width), width)
        k.store_part("float", n, kept, power, k.step(out, index, 4))
        return [k.binary("fadd", values[0], _mask(k, kept, power, "zeroinitializer"), width)]

    sums = _sweep(k, spec, powers, ["zeroinitializer"])[0]
    share = k.spread(k.value(f"fdiv float {number(1.0)}, {k.total(sums, width)}"), width)

    def divide(index: str, kept: int, values: list[str]) -> list[str]:
        place = k.step(out, index, 4)
        value = k.binary("fmul", k.load_part("float", n, kept, place), share, width)
        k.store_part("float", n, kept, value, place)
        return values

    _sweep(k, spec, divide, [])


def _layer_norm(k: Kernel, spec: Rows, x: str, out: str) -> None:
    n, width = k.machine.floats, k.machine.width
    padded = -(-spec.length // 16) * 64  # bytes of a parameter

    def loaded(base: str, index: str, kept: int) -> str:
        return k.load_part("float", n, kept, k.step(base, index, 4))

    def add(index: str, kept: int, values: list[str]) -> list[str]:
        value = _mask(k, kept, loaded(x, index, kept), "zeroinitializer")
        return [k.binary("fadd", values[0], value, width)]

    share = number(1.0 / spec.length)
    total = k.total(_sweep(k, spec, add, ["zeroinitializer"])[0], width)
    mean = k.spread(k.value(f"fmul float {total}, {share}"), width)

    def square(index: str, kept: int, values: list[str]) -> list[str]:
        off = k.binary("fsub", loaded(x, index, kept), mean, width)
        return [k.fma(off, _mask(k, kept, off, "zeroinitializer"), values[0], width)]

    total = k.total(_sweep(k, spec, square, ["zeroinitializer"])[0], width)
    spread = k.spread(k.value(f"fadd float {k.value(f'fmul float {total}, {share}')}, {number(spec.eps)}"), width)
    root = k.binary("fdiv", k.splat(1.0), k.call(f"llvm.sqrt.v{n}f32", spread), width)
    grid = [k.load(f"<{n} x float>", k.at("%params", 2 * padded + 64 * index), width) for index in (0, 1)]

    def write(index: str, kept: int, values: list[str]) -> list[str]:
        off = k.binary("fmul", k.binary("fsub", loaded(x, index, kept), mean, width), root, width)
        weight, bias = (loaded(k.at("%params", offset), index, kept) for offset in (0, padded))
        value = k.fma(off, weight, bias, width)
        if spec.out == "f32":
            k.store_part("float", n, kept, value, k.step(out, index, 4))
            return values
        steps = k.least(k.splat(_LARGEST), k.binary("fmul", value, grid[0], width), width)
        whole = k.value(f"add <{n} x i32> {k.round(steps, width)}, {k.round(grid[1], width)}")
        packed = k.clamp_bytes(k.narrow([whole], width), spec.low, spec.high, n)
        k.store_part("i8", n, kept, packed, k.step(out, index, 1))
        return values

    _sweep(k, spec, write, [])
