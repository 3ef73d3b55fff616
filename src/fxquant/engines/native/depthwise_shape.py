"""The shape of a depthwise convolution, and how its channels and columns share vectors."""

from __future__ import annotations

from dataclasses import dataclass

from fxquant.engines.native.finish import Finish
from fxquant.engines.native.machine import Machine

Point = tuple[int, int]
Variant = tuple[Point | None, ...]  # the tap that each of four pixels is


@dataclass(frozen=True, kw_only=True, slots=True)
class Depthwise:
    """The shape of one kernel. Strides are in bytes, those of inputs from one pixel of the input to the next."""

    kernel: Point
    stride: Point
    channels: int  # a multiple of 16
    rows: int
    width: int
    in_row: int
    in_pixel: int
    out_row: int
    out_pixel: int
    other_row: int = 0
    other_pixel: int = 0
    tile: Point  # outputs: rows, columns
    down: bool = False  # whether tiles go down their rows, with weights in registers
    finish: Finish
    pairs: bool = False  # whether sums of two products fit int16


def block_widths(channels: int, machine: Machine) -> list[int]:
    """Bytes of the vectors that the channels are done in."""
    found: list[int] = []
    for width in (64, 32, 16):
        if width <= machine.width:
            found += [width] * ((channels - sum(found)) // width)
    return found


def strips(spec: Depthwise, size: int, machine: Machine) -> int:
    """Tell how many tiles of a block of `size` channels share vectors."""
    count = 1 if spec.finish.other else machine.width // size
    while count > 1 and count * spec.tile[1] > spec.width:
        count //= 2
    return count
