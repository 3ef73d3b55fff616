"""How many products of bytes this CPU can sum in a second: the bar that kernels are measured by."""

from __future__ import annotations

import ctypes
import functools
import time

from fxquant.engines.native.ir import Carry
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.parts import aligned
from fxquant.engines.native.vector import Kernel

_TURNS, _ROUNDS = 20000, 20
_VECTORS = 2


def _emit(machine: Machine) -> Kernel:
    """Dot products of a tile as large as the registers allow, on bytes that are near; no two of them are the same."""
    k = Kernel("peak", ("x", "out"), machine)
    width, n = machine.width, machine.floats
    carries = [Carry(type=f"<{n} x i32>", start="zeroinitializer")] * (_VECTORS * machine.most_rows(_VECTORS))

    def turn(index: str, sums: list[str]) -> list[str]:
        at = k.step("%x", k.value(f"and i64 {index}, 3"), 2 * width)
        weights = [k.weights(k.at(at, v * width * machine.weight_bytes), width) for v in range(_VECTORS)]
        quads = [k.quad(k.at(at, 4 * pixel), width) for pixel in range(len(sums) // _VECTORS)]
        return [
            k.dot(total, quads[place // _VECTORS], weights[place % _VECTORS], width) for place, total in enumerate(sums)
        ]

    sums = k.loop(0, _TURNS, 1, turn, carries)
    for index, total in enumerate(sums):
        k.store(f"<{n} x i32>", total, k.at("%out", index * width), width)
    k.lines[0] = k.lines[0].replace("define internal", "define")
    return k


@functools.cache
def peak(machine: Machine) -> float:
    """Products in a second, of one core: the best of some rounds."""
    machine = machine.for_pairs(True)
    kernel = _emit(machine)
    library = Libraries().load([kernel], machine)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(library.address("peak"))
    x, out = aligned(1024), aligned(64 * 128)
    x[:] = 1
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        function(x.ctypes.data, out.ctypes.data, 0, 1, 0, 1)
        best = min(best, time.perf_counter() - start)
    return _TURNS * machine.most_rows(_VECTORS) * _VECTORS * machine.width / best
