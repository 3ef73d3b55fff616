"""Images of another size: each pixel is a sum of a few of the input's, by weights of its row times those of its column.

    out[y, x] = sum over (i, j): wy[y, i] * wx[x, j] * in[py[y, i], px[x, j]]

That is nearest, bilinear, bicubic, with or without antialiasing: `Sums` of one axis say which pixels and weights.
Channels are innermost. With one weight of 1 for each pixel, bytes go on as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_LARGEST = float(2**30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resize:
    """The shape of one kernel: of the output, with strides in bytes, and how many pixels are summed along each axis."""

    channels: int
    rows: int
    width: int
    out_row: int
    out_pixel: int
    taps: tuple[int, int]
    source: Literal["u8", "f32"]
    out: Literal["u8", "f32"]
    low: int = 0
    high: int = 255
    nan: int = 0
    copies: bool = False

    @property
    def count(self) -> int:
        """Places in the tables."""
        return self.rows * self.taps[0] + self.width * self.taps[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Along one axis: for each pixel of the output, which of the input's are summed, and their weights."""

    places: NDArray[np.int64]  # [size, taps]
    weights: NDArray[np.float32]

    @property
    def taps(self) -> int:
        return int(self.places.shape[1])


def sums_of(matrix: NDArray[np.float32]) -> Sums:
    """From the weights [input, output] of all pixels of an axis; most are 0."""
    used = matrix != 0
    taps = max(1, int(used.sum(0).max()))
    places = np.argsort(~used, axis=0, kind="stable")[:taps].T
    weights = np.take_along_axis(matrix.T, places, axis=1)
    return Sums(places=places.astype(np.int64), weights=weights.astype(np.float32))


def every(size: int) -> Sums:
    """Return those of an axis that stays as it is."""
    return Sums(places=np.arange(size)[:, None], weights=np.ones((size, 1), np.float32))


def repeated(sums: Sums, count: int, size: int) -> Sums:
    """Return those of several axes of so many pixels, one after the other."""
    starts = np.repeat(np.arange(count) * size, len(sums.places))[:, None]
    return Sums(places=np.tile(sums.places, (count, 1)) + starts, weights=np.tile(sums.weights, (count, 1)))


def tables(y: Sums, x: Sums, row: int, pixel: int) -> NDArray[np.uint8]:
    """Return what the kernel reads: offsets in bytes of rows, then of pixels, then the weights of both."""
    offsets = np.concatenate(((y.places * row).reshape(-1), (x.places * pixel).reshape(-1)))
    weights = np.concatenate((y.weights.reshape(-1), x.weights.reshape(-1)))
    return np.concatenate((offsets.view(np.uint8), weights.astype(np.float32).view(np.uint8)))


def emit(name: str, spec: Resize, machine: Machine) -> Kernel:
    """Return the kernel.

    Its arguments: `x`, `tables`, `params` (factor, zero of the input, of the output, sixteen times each), `out`.
    """
    k = Kernel(name, ("x", "tables", "params", "out"), machine)
    ys, xs = spec.taps
    first = spec.rows * ys  # of the tables of pixels

    def entry(index: str, start: int, taps: int, tap: int) -> tuple[str, str]:
        """(offset, weight) of one of the pixels that are summed."""
        place = k.at(k.step("%tables", index, 8 * taps), 8 * (start + tap))
        weight = k.at(k.step("%tables", index, 4 * taps), 8 * spec.count + 4 * (start + tap))
        return k.load("i64", place), k.load("float", weight)

    def row(y: str) -> None:
        out = k.step("%out", y, spec.out_row)
        lines = [entry(y, 0, ys, tap) for tap in range(ys)]
        bases = [k.at("%x", offset) for offset, _ in lines]

        def pixel(x: str) -> None:
            sources, weights = [], []
            for tap in range(xs):
                offset, share = entry(x, first, xs, tap)
                sources += [k.at(base, offset) for base in bases]
                if not spec.copies:
                    both = (k.value(f"fmul float {share}, {weight}") for _, weight in lines)
                    weights += [k.spread(each, machine.width) for each in both]
            _channels(k, spec, sources, weights, k.step(out, x, spec.out_pixel))

        k.each(0, spec.width, pixel)

    k.each("%y0", "%y1", row)
    return k


def _channels(k: Kernel, spec: Resize, sources: list[str], weights: list[str], out: str) -> None:
    size = 4 if spec.source == "f32" else 1
    if spec.copies:
        k.call("llvm.memcpy.p0.p0.i64", out, sources[0], str(spec.channels * size), "false")
        return

    def turn(channel: str, kept: int) -> None:
        total = "zeroinitializer"
        for source, weight in zip(sources, weights, strict=True):
            value = _load(k, spec, k.step(source, channel, size), kept)
            total = k.fma(value, weight, total, k.machine.width)
        _store(k, spec, total, k.step(out, channel, 4 if spec.out == "f32" else 1), kept)

    k.each_part(spec.channels, turn)


def _load(k: Kernel, spec: Resize, address: str, kept: int) -> str:
    n = k.machine.floats
    if spec.source == "f32":
        return k.load_part("float", n, kept, address)
    narrow = k.load_part("i8", n, kept, address)
    return k.to_float(k.value(f"zext <{n} x i8> {narrow} to <{n} x i32>"), k.machine.width)


def _store(k: Kernel, spec: Resize, total: str, address: str, kept: int) -> None:
    n, width = k.machine.floats, k.machine.width
    factor, low, zero = (k.load(f"<{n} x float>", k.at("%params", 64 * index), width) for index in range(3))
    value = k.binary("fmul", k.binary("fsub", total, low, width), factor, width)
    if spec.out == "f32":
        k.store_part("float", n, kept, value, address)
        return
    whole = k.steps(value, ("", zero, spec.nan), width)
    packed = k.clamp_bytes(k.narrow([whole], width), spec.low, spec.high, n)
    k.store_part("i8", n, kept, packed, address)
