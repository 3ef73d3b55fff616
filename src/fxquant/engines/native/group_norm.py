"""Group norm of images with the channels innermost; with a group for each channel it is instance norm.

    (x - mean) / sqrt(var + eps) * weight + bias,   mean and var over the pixels and channels of a group

Sums are taken channel by channel, in vectors, and then added up by group, so that groups of any size do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fxquant.engines.native.ir import Carry, number
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_LARGEST = float(2**30)
_TOGETHER = 4  # vectors of channels that are summed at once


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNorm:
    """The shape of one kernel; strides are in bytes."""

    channels: int
    groups: int
    rows: int
    width: int
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    eps: float
    source: Literal["u8", "f32"]
    out: Literal["u8", "f32"]
    low: int = 0
    high: int = 255
    nan: int = 0

    @property
    def padded(self) -> int:
        """Bytes of a row of floats with one for each channel."""
        return -(-self.channels // 16) * 64


def emit(name: str, spec: GroupNorm, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `params` (weight, bias; scale and zero of `x`, 1 / scale and zero of `out`), `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)
    sums, means, roots = (k.value(f"alloca [{spec.padded} x i8], align 64") for _ in range(3))
    n, width = machine.floats, machine.width
    _sum(k, spec, sums, lambda x, _, total: k.binary("fadd", x, total, width))
    share = number(spec.groups / (spec.channels * spec.rows * spec.width))
    _by_group(k, spec, sums, means, lambda total: k.value(f"fmul float {total}, {share}"))

    def square(x: str, channel: int, total: str) -> str:
        off = k.binary("fsub", x, k.load(f"<{n} x float>", k.at(means, 4 * channel)), width)
        return k.fma(off, off, total, width)

    _sum(k, spec, sums, square)
    _by_group(k, spec, sums, roots, lambda total: _root(k, spec, k.value(f"fmul float {total}, {share}")))
    _write(k, spec, means, roots)
    return k


def _root(k: Kernel, spec: GroupNorm, variance: str) -> str:
    """1 / sqrt(variance + eps)"""
    n = k.machine.floats
    moved = k.spread(k.value(f"fadd float {variance}, {number(spec.eps)}"), k.machine.width)
    root = k.value(f"extractelement <{n} x float> {k.call(f'llvm.sqrt.v{n}f32', moved)}, i64 0")
    return k.value(f"fdiv float {number(1.0)}, {root}")


def _load(k: Kernel, spec: GroupNorm, pixel: str, channel: str, kept: int) -> str:
    """`kept` channels of a pixel as floats; what stands behind them is of no account."""
    n, width = k.machine.floats, k.machine.width
    if spec.source == "f32":
        return k.load_part("float", n, kept, k.step(pixel, channel, 4))
    narrow = k.load_part("i8", n, kept, k.step(pixel, channel, 1))
    whole = k.to_float(k.value(f"zext <{n} x i8> {narrow} to <{n} x i32>"), width)
    scale, zero = (_number(k, spec, index) for index in (0, 1))
    return k.binary("fmul", k.binary("fsub", whole, zero, width), scale, width)


def _number(k: Kernel, spec: GroupNorm, index: int) -> str:
    return k.load(f"<{k.machine.floats} x float>", k.at("%params", 2 * spec.padded + 64 * index), k.machine.width)


def _sum(k: Kernel, spec: GroupNorm, sums: str, add: Callable[[str, int, str], str]) -> None:
    """sums[channel] = what `add(values, first channel, sums so far)` makes of all pixels."""
    n = k.machine.floats
    starts = list(range(0, spec.channels, n))
    for first in range(0, len(starts), _TOGETHER):
        block = starts[first : first + _TOGETHER]
        carries = [Carry(type=f"<{n} x float>", start="zeroinitializer") for _ in block]

        def pixel(at: str, totals: list[str], block: list[int] = block) -> list[str]:
            kept = [min(n, spec.channels - channel) for channel in block]
            loaded = [_load(k, spec, at, str(channel), some) for channel, some in zip(block, kept, strict=True)]
            return [add(*each) for each in zip(loaded, block, totals, strict=True)]

        def row(y: str, totals: list[str], block: list[int] = block) -> list[str]:
            base = k.step("%x", y, spec.in_row)
            inside = [Carry(type=f"<{n} x float>", start=total) for total in totals]
            return k.loop(
                0, spec.width, 1, lambda x, values: pixel(k.step(base, x, spec.in_pixel), values, block), inside
            )

        for channel, total in zip(block, k.loop(0, spec.rows, 1, row, carries), strict=True):
            k.store(f"<{n} x float>", total, k.at(sums, 4 * channel))


def _by_group(k: Kernel, spec: GroupNorm, sums: str, out: str, finish: Callable[[str], str]) -> None:
    """out[channel] = what `finish` makes of the sum over its group."""
    size = spec.channels // spec.groups

    def group(index: str) -> None:
        source, target = k.step(sums, index, 4 * size), k.step(out, index, 4 * size)

        def add(channel: str, totals: list[str]) -> list[str]:
            return [k.value(f"fadd float {totals[0]}, {k.load('float', k.step(source, channel, 4))}")]

        total = k.loop(0, size, 1, add, [Carry(type="float", start=number(0.0))])[0]
        made = finish(total)
        k.each(0, size, lambda channel: k.store("float", made, k.step(target, channel, 4)))

    k.each(0, spec.groups, group)


def _write(k: Kernel, spec: GroupNorm, means: str, roots: str) -> None:
    """(x - mean) * root * weight + bias, in floats or on a grid."""
    n, width = k.machine.floats, k.machine.width
    vector = f"<{n} x float>"

    def channels(source: str, out: str, channel: str, kept: int) -> None:
        mean, root = (k.load(vector, k.step(base, channel, 4)) for base in (means, roots))
        off = k.binary("fsub", _load(k, spec, source, channel, kept), mean, width)
        weight, bias = (k.load(vector, k.step(k.at("%params", base), channel, 4)) for base in (0, spec.padded))
        value = k.fma(k.binary("fmul", off, root, width), weight, bias, width)
        if spec.out == "f32":
            k.store_part("float", n, kept, value, k.step(out, channel, 4))
            return
        inverse, zero = (_number(k, spec, index) for index in (2, 3))
        whole = k.steps(value, (inverse, zero, spec.nan), width)
        packed = k.clamp_bytes(k.narrow([whole], width), spec.low, spec.high, n)
        k.store_part("i8", n, kept, packed, k.step(out, channel, 1))

    def row(y: str) -> None:
        source, out = k.step("%x", y, spec.in_row), k.step("%out", y, spec.out_row)

        def pixel(x: str) -> None:
            at, place = k.step(source, x, spec.in_pixel), k.step(out, x, spec.out_pixel)
            k.each_part(spec.channels, lambda channel, kept: channels(at, place, channel, kept))

        k.each(0, spec.width, pixel)

    k.each(0, spec.rows, row)
