"""Pictures on their way in, and borders.

`quantize_planes` turns up to four float planes (channels first) into bytes with the channels last, without a gap
between pixels. `fill_border` writes the zero point around an image, where a padded convolution will read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel, indices

_LARGEST = float(2**30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planes:
    """`channels` planes of `rows` times `width` floats, dense; the output's row stride is in bytes."""

    channels: int
    rows: int
    width: int
    out_row: int
    low: int
    high: int
    nan: int = 0


def quantize_planes(name: str, spec: Planes, machine: Machine) -> Kernel:
    """Return the kernel: `x` (floats), `params` (1 / scale and zero, sixteen times each), `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)
    n, channels = machine.floats, spec.channels

    def row(y: str) -> None:
        source, out = k.step("%x", y, 4 * spec.width), k.step("%out", y, spec.out_row)

        def turn(x: str, kept: int) -> None:
            planes = []
            for channel in range(channels):
                at = k.at(k.step(source, x, 4), 4 * channel * spec.rows * spec.width)
                planes.append(_quantize(k, k.load_part("float", n, kept, at), spec))
            both = _interleave(k, planes)
            k.store_part("i8", 4 * n, kept * channels, both, k.step(out, x, channels))

        full = spec.width // n * n
        k.each(0, full, lambda x: turn(x, n), n)
        if spec.width > full:
            turn(str(full), spec.width - full)

    k.each("%y0", "%y1", row)
    return k


def _quantize(k: Kernel, x: str, spec: Planes) -> str:
    """Int32 in the range of the grid."""
    n, width = k.machine.floats, k.machine.width
    inverse, zero = (k.load(f"<{n} x float>", k.at("%params", offset), width) for offset in (0, 64))
    moved = k.steps(x, (inverse, zero, spec.nan), width)
    low = k.call(f"llvm.smax.v{n}i32", moved, f"splat (i32 {spec.low})")
    return k.call(f"llvm.smin.v{n}i32", low, f"splat (i32 {spec.high})")


def _interleave(k: Kernel, planes: list[str]) -> str:
    """Return the bytes of several planes in turns, at the front of a vector."""
    n = k.machine.floats
    joined = planes[0]
    for channel, plane in enumerate(planes[1:], 1):
        up = k.value(f"shl <{n} x i32> {plane}, splat (i32 {8 * channel})")
        joined = k.value(f"or <{n} x i32> {joined}, {up}")
    all_ = k.value(f"bitcast <{n} x i32> {joined} to <{4 * n} x i8>")
    picked = [4 * pixel + channel for pixel in range(n) for channel in range(len(planes))]
    picked += [0] * (4 * n - len(picked))
    return k.value(f"shufflevector <{4 * n} x i8> {all_}, <{4 * n} x i8> poison, {indices(picked)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Border:
    """Bytes: `top` before the first row, rows of `inner` with `gap` between them, `bottom` after the last."""

    top: int
    rows: int
    inner: int
    gap: int
    bottom: int


def fill_border(name: str, spec: Border, machine: Machine) -> Kernel:
    """Return the kernel: `params` (the byte), `out` (the first byte of the border)."""
    k = Kernel(name, ("params", "out"), machine)
    byte = k.load("i8", "%params")

    def fill(address: str, size: int) -> None:
        if size:
            k.call("llvm.memset.p0.i64", address, byte, str(size), "false")

    fill("%out", spec.top)
    if spec.gap:
        first = k.at("%out", spec.top + spec.inner)
        k.each(0, spec.rows - 1, lambda y: fill(k.step(first, y, spec.inner + spec.gap), spec.gap))
    fill(k.at("%out", spec.top + spec.rows * spec.inner + (spec.rows - 1) * spec.gap), spec.bottom)
    return k
