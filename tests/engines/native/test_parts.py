"""Memory of programs: where it begins, and that it is there as long as it is looked at."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native.parts import Arena, Bytes, aligned, lasting


@pytest.mark.broad
@pytest.mark.parametrize("size", [1, 4096, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, 5 << 20])
@pytest.mark.parametrize("make", [aligned, lasting])
def test_memory(make: Callable[[int], Bytes], size: int) -> None:
    memory = make(size)
    gc.collect()
    memory[:] = 7
    assert memory.shape == (size,) and memory.ctypes.data % 64 == 0
    assert (memory == 7).all()


def test_arena() -> None:
    arena = Arena(3 << 20)
    arena.memory[-1] = 1
    assert arena.address == arena.memory.ctypes.data and arena.address % 64 == 0
