"""What a program is made of: kernels called with pointers, in order, and the constants that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.values import Buffer, View
from fxquant.engines.native.vector import Kernel

Emit = Callable[[str, Any, Machine], Kernel]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointer:
    """A place in a buffer, in bytes from its beginning; without a buffer, among the packed constants."""

    buffer: Buffer | None = None
    offset: int = 0


def pointer(view: View) -> Pointer:
    return Pointer(buffer=view.buffer, offset=view.offset * view.buffer.element)


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One call of a kernel. The work is split by `rows` (in steps of `grain`), or by `blocks` of channels."""

    emit: Emit
    spec: Any  # frozen: kernels of equal shape are one function
    pointers: tuple[Pointer, ...]
    reads: tuple[Buffer, ...]
    writes: Buffer
    level: int
    rows: int = 1
    grain: int = 1
    blocks: int = 1
    label: str = ""
    macs: int = 0
    single: bool = False  # a product with one row in a sample


class Constants:
    """Packed constants of a program, each at a multiple of 64 bytes."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint8]] = []
        self._known: dict[bytes, int] = {}
        self.size = 0

    def put(self, array: NDArray[np.generic]) -> int:
        """Keep an array; its offset. Small equal ones are kept once."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = data.tobytes() if data.nbytes <= 4096 else b""
        if key and key in self._known:
            return self._known[key]
        offset = self.size
        padding = -data.nbytes % 64
        self._pieces += [data, np.zeros(padding, np.uint8)]
        self.size += data.nbytes + padding
        if key:
            self._known[key] = offset
        return offset

    def packed(self) -> NDArray[np.uint8]:
        return np.concatenate((*self._pieces, np.zeros(256, np.uint8)))


def levels(views: Sequence[View]) -> int:
    """Return the segment that an op on these belongs to: even, and not before any of them."""
    latest = max((view.level for view in views), default=0)
    return latest + latest % 2
