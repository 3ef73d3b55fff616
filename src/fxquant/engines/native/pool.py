"""Maxima and means over windows of pixels, bytes with the channels last.

The windows are cut at the borders beforehand, so padding is never read: a table gives the first and the last pixel of
each row and column of outputs, and for means the share that one pixel has. That covers padding, ceil_mode, adaptive
and global pooling alike.

    mean    q = round((sum(q) - zero * pixels) * share_y * share_x * scale + out_zero)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.depthwise_shape import block_widths
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

Row: TypeAlias = Callable[[str, list[str]], list[str]]
Window = tuple[int, int, float]  # first pixel, the one after the last, share of a pixel
_ROW = 32  # bytes of a row of the table
_HEADER = 192  # scale, zero of the input, zero of the output


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The shape of one kernel. Strides are in bytes; `apart` is the distance of pixels inside a window (dilation).

    A volume has several `planes` of outputs, each of so many rows.
    """

    mode: Literal["max", "mean"]
    channels: int  # a multiple of 16
    rows: int
    width: int
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    planes: int = 0
    in_plane: int = 0
    out_plane: int = 0
    out: Literal["u8", "f32"] = "u8"
    apart: tuple[int, ...] = (1, 1, 1)
    narrow: bool  # the sums of a row fit in 16 bits
    low: int = 0
    high: int = 255


def table(axes: Sequence[list[Window]], scale: float, zero: float, out_zero: float) -> NDArray[np.uint8]:
    """Return what the kernel reads as `params`: factors, then the windows of planes, if any, of rows and of columns."""
    windows = [window for axis in axes for window in axis]
    head = np.repeat(np.array([scale, zero, out_zero], np.float32), 16).view(np.uint8)
    rows = np.zeros((len(windows), _ROW // 8), np.int64)
    rows[:, 0] = [window[0] for window in windows]
    rows[:, 1] = [window[1] for window in windows]
    rows[:, 2].view(np.float64)[:] = 0.0
    shares = np.array([window[2] for window in windows], np.float32)
    as_floats = rows.view(np.float32)
    as_floats[:, 4] = shares
    return np.concatenate((head, rows.reshape(-1).view(np.uint8)))


def emit(name: str, spec: Pool, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `params`, `out`."""
    k = Kernel(name, ("x", "params", "out"), machine)

    def row(y: str) -> None:
        out, at, entries = "%out", _HEADER, list[str]()
        if spec.planes:
            plane, y = (k.value(f"{how} i64 {y}, {spec.rows}") for how in ("udiv", "urem"))
            out = k.step(out, plane, spec.out_plane)
            entries.append(k.step(k.at("%params", at), plane, _ROW))
            at += spec.planes * _ROW
        entries.append(k.step(k.at("%params", at), y, _ROW))
        out_row = k.step(out, y, spec.out_row)

        def column(x: str) -> None:
            x_entry = k.step(k.at("%params", at + spec.rows * _ROW), x, _ROW)
            _channels(k, spec, (*entries, x_entry), k.step(out_row, x, spec.out_pixel))

        k.each(0, spec.width, column)

    k.each("%y0", "%y1", row)
    return k


def _channels(k: Kernel, spec: Pool, entries: tuple[str, ...], out: str) -> None:
    widths = block_widths(spec.channels, k.machine)
    if spec.out == "f32":
        widths = [k.machine.floats] * (spec.channels // k.machine.floats)
    done, element = 0, 4 if spec.out == "f32" else 1
    for size in dict.fromkeys(widths):
        count = widths.count(size)

        def block(index: str, size: int = size, done: int = done) -> None:
            source = k.step(k.at("%x", done), index, size)
            place = k.step(k.at(out, done * element), index, size * element)
            if spec.mode == "max":
                _maximum(k, spec, entries, source, place, size)
            else:
                _mean(k, spec, entries, source, place, size)

        k.each(0, count, block)
        done += count * size


def _bounds(k: Kernel, entry: str) -> tuple[str, str]:
    return k.load("i64", entry, 8), k.load("i64", k.at(entry, 8), 8)


def _over_rows(
    k: Kernel, spec: Pool, bounds: Sequence[tuple[str, str]], source: str, row: Row, carries: list[Carry]
) -> list[str]:
    """Return what is carried over all rows of a window; `row` takes the address of one."""

    def plane(base: str, carries: list[Carry]) -> list[str]:
        def line(y: str, found: list[str]) -> list[str]:
            return row(k.step(base, y, spec.in_row), found)

        return k.loop(*bounds[-2], spec.apart[-2], line, carries)

    if not spec.planes:
        return plane(source, carries)

    def within(z: str, found: list[str]) -> list[str]:
        again = [replace(carry, start=value) for carry, value in zip(carries, found, strict=True)]
        return plane(k.step(source, z, spec.in_plane), again)

    return k.loop(*bounds[0], spec.apart[0], within, carries)


def _maximum(k: Kernel, spec: Pool, entries: tuple[str, ...], source: str, out: str, size: int) -> None:
    type_ = f"<{size} x i8>"
    bounds = [_bounds(k, entry) for entry in entries]

    def row(base: str, best: list[str]) -> list[str]:
        def pixel(x: str, best: list[str]) -> list[str]:
            value = k.load(type_, k.step(base, x, spec.in_pixel))
            return [k.call(f"llvm.umax.v{size}i8", best[0], value)]

        return k.loop(*bounds[-1], spec.apart[-1], pixel, [Carry(type=type_, start=best[0])])

    found = _over_rows(k, spec, bounds, source, row, [Carry(type=type_, start="zeroinitializer")])
    k.store(type_, k.clamp_bytes(found[0], spec.low, spec.high, size), out)


def _mean(k: Kernel, spec: Pool, entries: tuple[str, ...], source: str, out: str, size: int) -> None:
    bounds = [_bounds(k, entry) for entry in entries]
    natural = spec.out == "f32"
    width = k.machine.width if natural else size  # of the vectors of sums
    n = width // 4
    count = 1 if natural else 4
    carries = [Carry(type=f"<{n} x i32>", start="zeroinitializer")] * count

    def row(base: str, sums: list[str]) -> list[str]:
        if spec.narrow and not natural:
            return _add_row_of_words(k, spec, base, bounds[-1], sums, size)

        def pixel(x: str, sums: list[str]) -> list[str]:
            wide = k.widen(k.step(base, x, spec.in_pixel), count, width)
            return [k.value(f"add <{n} x i32> {a}, {b}") for a, b in zip(sums, wide, strict=True)]

        return k.loop(*bounds[-1], 1, pixel, [Carry(type=f"<{n} x i32>", start=total) for total in sums])

    sums = _over_rows(k, spec, bounds, source, row, carries)
    sizes = [k.value(f"sub i64 {high}, {low}") for low, high in bounds]
    pixels = functools.reduce(lambda a, b: k.value(f"mul i64 {a}, {b}"), sizes)
    type_ = f"<{n} x float>"
    scale, zero, out_zero = (k.load(type_, k.at("%params", 64 * index), width) for index in range(3))
    shares = [k.load("float", k.at(entry, 16), 4) for entry in entries]
    factor = k.spread(functools.reduce(lambda a, b: k.value(f"fmul float {a}, {b}"), shares), width)
    scale = k.binary("fmul", scale, factor, width)
    lifted = k.spread(k.value(f"sitofp i64 {pixels} to float"), width)
    zero = k.binary("fmul", zero, lifted, width)
    means = []
    for total in sums:
        centred = k.binary("fsub", k.to_float(total, width), zero, width)
        means.append(k.fma(centred, scale, out_zero, width))
    if natural:
        k.store(type_, means[0], out)
        return
    packed = k.narrow([k.round(mean, width) for mean in means], width)
    k.store(f"<{size} x i8>", k.clamp_bytes(packed, spec.low, spec.high, size), out)


def _add_row_of_words(
    k: Kernel, spec: Pool, base: str, bounds: tuple[str, str], sums: list[str], size: int
) -> list[str]:
    """Add a row of pixels in 16 bits, then to the sums."""
    n, words = size // 4, f"<{size // 2} x i16>"

    def pixel(x: str, halves: list[str]) -> list[str]:
        loaded = k.load(f"<{size} x i8>", k.step(base, x, spec.in_pixel))
        made = []
        for half, high in zip(halves, (False, True), strict=True):
            wide = k.unpack(loaded, "zeroinitializer", high, 1, size)
            made.append(k.value(f"add {words} {half}, {k.value(f'bitcast <{size} x i8> {wide} to {words}')}"))
        return made

    halves = k.loop(*bounds, 1, pixel, [Carry(type=words, start="zeroinitializer")] * 2)
    found = []
    for half in halves:
        raw = k.value(f"bitcast {words} {half} to <{size} x i8>")
        for high in (False, True):
            quarter = k.unpack(raw, "zeroinitializer", high, 2, size)
            found.append(k.value(f"bitcast <{size} x i8> {quarter} to <{n} x i32>"))
    return [k.value(f"add <{n} x i32> {a}, {b}") for a, b in zip(sums, found, strict=True)]
