"""What a program consists of: memory, and numbers that say how much of it there is and what is handed over."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.results import Result
from fxquant.engines.native.slots import Import

Bytes = NDArray[np.uint8]


def aligned(size: int) -> Bytes:
    """Memory that begins at a multiple of 64 bytes."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


_PAGE = 2 << 20  # bytes of a large page
_LARGE = _PAGE // 2  # from which on memory is worth such pages


def lasting(size: int) -> Bytes:
    """The same for memory that all calls use: in large pages if there is much of it, and the system has them.

    A network goes through all of its memory in each call. The places of so many small pages would have to be looked up.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned(size)
    area = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        area.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(area, np.uint8)
    first = -pages.ctypes.data % _PAGE
    return pages[first : first + size]


class Arena:
    """Memory for one sample's buffers."""

    def __init__(self, size: int) -> None:
        self.memory = lasting(size)
        self.address = self.memory.ctypes.data


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Bytes of the arena and of what is kept for a sample, products of a sample, those of linears with one row."""

    arena: int
    kept: int
    macs: int
    single: int
    products: int  # how many ops multiply
    ops: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a program without ops of Python needs to run, besides code and constants."""

    levels: list[int]
    sizes: Sizes
    signed: bool
    slots: int
    imports: dict[int, list[tuple[int, Import]]]
    results: dict[int, list[Result]]
    by_row: bool  # whether the graph does the same with every row
