"""The shape of a matrix product: what belongs to an output, and how a kernel goes over all of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from fxquant.engines.native.finish import Finish
from fxquant.engines.native.gemm_tiles import split_row
from fxquant.engines.native.machine import Machine

LINE = 64  # bytes that are loaded from memory at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Taps:
    """Runs of bytes that belong to one output: `zs` times `ys` times `xs` of `length` bytes."""

    zs: int = 1
    ys: int
    xs: int
    z_step: int = 0
    y_step: int
    x_step: int
    length: int
    rests: bool = False  # whether the one byte that a run has beyond its quads shares one with those of other runs

    @property
    def count(self) -> int:
        return self.zs * self.ys * self.xs

    @property
    def quads(self) -> int:
        """Quads of a run alone."""
        return self.length // 4 if self.rests else -(-self.length // 4)

    @property
    def joined(self) -> int:
        """Quads of the last bytes of runs."""
        return -(-self.count // 4) if self.rests else 0

    @property
    def steps(self) -> int:
        """All quads of an output."""
        return self.count * self.quads + self.joined

    def place(self, index: int) -> int:
        """Return where a run begins, in bytes from the first."""
        line, x = divmod(index, self.xs)
        z, y = divmod(line, self.ys)
        return z * self.z_step + y * self.y_step + x * self.x_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    """How a volume's outputs lie in memory: `planes` of so many `rows`, and bytes from one plane to the next."""

    planes: int
    rows: int
    into: int
    out: int
    other: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """The shape of one kernel. Strides are in bytes; those of inputs are from one output to the next.

    `rows` of `width` outputs, the last of them of `last` instead. `blocks` are the vectors of output channels that a
    tile has, for each block of channels. With `line`, a row is a tile of several lines of so many outputs. With
    `depth`, the rows are those of all planes, the last of each of `last` outputs.
    """

    taps: Taps
    rows: int
    width: int
    last: int
    depth: Depth | None = None
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    other_row: int = 0
    other_pixel: int = 0
    line: int = 0
    in_line: int = 0
    out_line: int = 0
    other_line: int = 0
    blocks: tuple[int, ...]
    narrow: bool = False  # whether the vectors of the last block have half the width
    shared: bool = False  # whether two outputs share the last vector of the only block, which is half full
    pixels: int  # at most, of a tile
    chunk: int  # rows that are done for all blocks before the next ones
    moved: bool = False
    finish: Finish
    pairs: bool = False  # whether sums of two products fit int16
    listed: bool = False  # they do, as the bytes are paired

    def place(self, pixel: int, step: int, line: int) -> int:
        """Return where an output of a tile is, by the strides of one and of a line."""
        return pixel // self.line * line + pixel % self.line * step if self.line else pixel * step

    def steps(self, machine: Machine) -> int:
        """Steps of the sums of all tiles, with each of which a line of memory can be asked for."""
        if self.listed:
            return 0
        return self.rows * sum(self.tiles(vectors, machine) for vectors in self.blocks) * self.taps.steps

    def tiles(self, vectors: int, machine: Machine) -> int:
        """Tiles of a row."""
        _, count, rest = split_row(self.width, min(self.pixels, machine.most_rows(vectors)))
        return count + bool(rest)

    def widths(self, machine: Machine) -> list[int]:
        """Bytes of the vectors of each block."""
        last = machine.width // 2 if self.narrow else machine.width
        return [machine.width] * (len(self.blocks) - 1) + [last]

    def runs(self, machine: Machine) -> list[tuple[int, int, int]]:
        """(vectors, their width, how many blocks) for each run of equal blocks."""
        found = itertools.groupby(zip(self.blocks, self.widths(machine), strict=True))
        return [(*each, len([*equal])) for each, equal in found]
