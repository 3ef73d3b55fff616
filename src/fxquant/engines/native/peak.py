"""How many products of bytes this CPU can sum in a second: the bar that kernels are measured by."""

from __future__ import annotations

import ctypes
import functools
import time

from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.program import Libraries, aligned
from fxquant.engines.native.vector import Kernel

_TURNS, _ROUNDS = 20000, 20


def _emit(machine: Machine) -> Kernel:
    """Dot products on registers alone, as many sums at once as a tile has."""
    k = Kernel("peak", ("x", "out"), machine)
    width, n = machine.width, machine.floats
    x = k.operand(k.load(f"<{width} x i8>", "%x", width), width)
    weights = k.weights("%x", width)
    count = machine.most_rows(4) * 4
    carries = [Carry(type=f"<{n} x i32>", start="zeroinitializer")] * count
    sums = k.loop(0, _TURNS, 1, lambda _, sums: [k.dot(total, x, weights, width) for total in sums], carries)
    for index, total in enumerate(sums):
        k.store(f"<{n} x i32>", total, k.at("%out", index * width), width)
    k.lines[0] = k.lines[0].replace("define internal", "define")
    return k


@functools.cache
def peak(machine: Machine) -> float:
    """Products in a second, of one core: the best of some rounds."""
    kernel = _emit(machine)
    library = Libraries().load([kernel], machine)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(library.address("peak"))
    x, out = aligned(256), aligned(64 * 128)
    x[:] = 1
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        function(x.ctypes.data, out.ctypes.data, 0, 1, 0, 1)
        best = min(best, time.perf_counter() - start)
    return _TURNS * machine.most_rows(4) * 4 * machine.width / best
