"""Pictures on their way in, and borders.

`quantize_planes` turns up to four float planes (channels first) into bytes with the channels last, without a gap
between pixels. `fill_border` writes the zero point around an image, where a padded convolution will read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.values import Buffer
from fxquant.engines.native.vector import Kernel, indices


@dataclass(frozen=True, kw_only=True, slots=True)
class Planes:
    """`channels` planes of `rows` times `width` floats, dense; the output's row stride is in bytes.

    Of a volume, each channel has several planes of `depth` rows, which lie `out_plane` bytes apart in the output.
    """

    channels: int
    rows: int
    width: int
    out_row: int
    depth: int = 0
    out_plane: int = 0
    low: int
    high: int
    nan: int = 0


def quantize_planes(name: str, spec: Planes, machine: Machine) -> Kernel:
    """Return the kernel: `x` (floats), `params` (1 / scale and zero, sixteen times each), `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)
    n, channels = machine.floats, spec.channels
    grid = _grid(k, spec)

    def row(y: str) -> None:
        source, out, line = k.step("%x", y, 4 * spec.width), "%out", y
        if spec.depth:
            plane, line = (k.value(f"{how} i64 {y}, {spec.depth}") for how in ("udiv", "urem"))
            out = k.step(out, plane, spec.out_plane)
        out = k.step(out, line, spec.out_row)

        def turn(x: str, kept: int) -> None:
            planes = []
            for channel in range(channels):
                at = k.at(k.step(source, x, 4), 4 * channel * spec.rows * spec.width)
                planes.append(_steps(k, k.load_part("float", n, kept, at), grid))
            both = _interleave(k, planes, grid)
            k.store_part("i8", 4 * n, kept * channels, both, k.step(out, x, channels))

        k.each_part(spec.width, turn)

    k.each("%y0", "%y1", row)
    return k


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Vectors: 1 / scale, bounds and NaN's place from the zero point on, and the zero point in all bytes of a pixel."""

    inverse: str
    low: str
    high: str
    nan: str
    zeros: str


def _grid(k: Kernel, spec: Planes) -> _Grid:
    n, width = k.machine.floats, k.machine.width
    inverse, zero = (k.load(f"<{n} x float>", k.at("%params", offset), width) for offset in (0, 64))
    low, high, nan = (k.binary("fsub", k.splat(float(bound)), zero, width) for bound in (spec.low, spec.high, spec.nan))
    ones = sum(1 << 8 * channel for channel in range(spec.channels))
    zeros = k.value(f"mul <{n} x i32> {k.round(zero, width)}, splat (i32 {ones})")
    return _Grid(inverse=inverse, low=low, high=high, nan=nan if spec.nan else "", zeros=zeros)


def _steps(k: Kernel, x: str, grid: _Grid) -> str:
    """Int32 from the zero point on, in the range of the grid; NaN is the lowest, if it has no place."""
    width = k.machine.width
    moved = k.binary("fmul", x, grid.inverse, width)
    if grid.nan:
        moved = k.or_else(moved, grid.nan, width)
    return k.round(k.least(k.largest(moved, grid.low, width), grid.high, width), width)


def _interleave(k: Kernel, planes: list[str], grid: _Grid) -> str:
    """Return the bytes of several planes in turns, at the front of a vector."""
    n, joined = k.machine.floats, grid.zeros
    for channel, plane in enumerate(planes):  # steps below zero borrow from the next byte, which the zero point gives
        up = k.value(f"shl <{n} x i32> {plane}, splat (i32 {8 * channel})") if channel else plane
        joined = k.value(f"add <{n} x i32> {joined}, {up}")
    all_ = k.value(f"bitcast <{n} x i32> {joined} to <{4 * n} x i8>")
    picked = [4 * pixel + channel for pixel in range(n) for channel in range(len(planes))]
    picked += [0] * (4 * n - len(picked))
    return k.value(f"shufflevector <{4 * n} x i8> {all_}, <{4 * n} x i8> poison, {indices(picked)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Border:
    """Bytes: `top` before the first row, rows of `inner` with `gap` between them, `bottom` after the last.

    A volume has `planes` of such rows, with `between` from one to the next.
    """

    top: int
    planes: int = 1
    between: int = 0
    rows: int
    inner: int
    gap: int
    bottom: int


def border_of(buffer: Buffer) -> Border:
    """Return what surrounds an image, or a volume, of a buffer."""
    (height, width), (y, x) = buffer.image[-2:], buffer.pad[-2:]
    whole = buffer.size // math.prod(size + 2 * edge for size, edge in zip(buffer.image[1:], buffer.pad, strict=True))
    row = (width + 2 * x) * whole
    edge, planes = y * row + x * whole, buffer.image[1] if len(buffer.image) > 3 else 1
    end = edge + (buffer.pad[0] * (height + 2 * y) * row if len(buffer.pad) > 2 else 0)
    inner, gap = width * whole, 2 * x * whole
    return Border(top=end, planes=planes, between=2 * edge, rows=height, inner=inner, gap=gap, bottom=end)


def fill_border(name: str, spec: Border, machine: Machine) -> Kernel:
    """Return the kernel: `params` (the byte), `out` (the first byte of the border)."""
    k = Kernel(name, ("params", "out"), machine)
    byte = k.load("i8", "%params")

    def fill(address: str, size: int) -> None:
        if size:
            k.call("llvm.memset.p0.i64", address, byte, str(size), "false")

    fill("%out", spec.top)
    size = spec.rows * spec.inner + (spec.rows - 1) * spec.gap

    def plane(first: str) -> None:
        if spec.gap and spec.rows > 1:
            at = k.at(first, spec.inner)
            k.each(0, spec.rows - 1, lambda y: fill(k.step(at, y, spec.inner + spec.gap), spec.gap))

    def before(z: str) -> None:
        first = k.step(k.at("%out", spec.top), z, size + spec.between)
        plane(first)
        fill(k.at(first, size), spec.between)

    if spec.planes > 1:
        k.each(0, spec.planes - 1, before)
    last = k.at("%out", spec.top + (spec.planes - 1) * (size + spec.between))
    plane(last)
    fill(k.at(last, size), spec.bottom)
    return k
