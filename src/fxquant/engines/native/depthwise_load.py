"""Pixels of a depthwise convolution as vectors of four taps of each channel."""

from __future__ import annotations

from fxquant.engines.native.depthwise_shape import Depthwise, Point
from fxquant.engines.native.vector import Kernel


class Loader:
    """Pixels of a tile, each loaded and unpacked once."""

    def __init__(self, k: Kernel, spec: Depthwise, base: str, sizes: tuple[int, int]) -> None:
        self.k, self.spec, self.base = k, spec, base
        self.channels, self.strips = sizes
        self.size = self.channels * self.strips
        self.pixels: dict[Point, str] = {}
        self.pairs: dict[tuple[Point, Point, int], str] = {}

    def quad(self, pixels: list[Point | None], halves: tuple[int, ...] = (0, 1)) -> list[tuple[str, ...]]:
        """Two vectors of operands for `dot` of each half, from four pixels; None is one that no weight looks at."""
        some = next(pixel for pixel in pixels if pixel is not None)
        a, b, c, d = ((pixels[i] or pixels[i ^ 1] or some) for i in range(4))
        made = [
            self.k.unpack(self._pair(a, b, half), self._pair(c, d, half), high, 2, self.size)
            for half in halves
            for high in (False, True)
        ]
        return [self.k.operand(vector, self.size) for vector in made]

    def _pair(self, a: Point, b: Point, half: int) -> str:
        if (a, b, half) not in self.pairs:
            self.pairs[a, b, half] = self.k.unpack(self._pixel(a), self._pixel(b), bool(half), 1, self.size)
        return self.pairs[a, b, half]

    def _pixel(self, at: Point) -> str:
        if at not in self.pixels:
            address = self.k.at(self.base, at[0] * self.spec.in_row + at[1] * self.spec.in_pixel)
            step = self.spec.tile[1] * self.spec.stride[1] * self.spec.in_pixel
            parts = [self.k.load(f"<{self.channels} x i8>", self.k.at(address, i * step)) for i in range(self.strips)]
            self.pixels[at] = self.k.joined(parts, self.channels)
        return self.pixels[at]
