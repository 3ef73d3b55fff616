"""Runs of bytes, each copied from one place to another: rolls, flips, repeats, constant indices, mirrored edges.

A table has a pair of int32 for each run: bytes from the beginning of the operand, and of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """The shape of one kernel: so many runs, of so many bytes each."""

    count: int
    run: int


def emit(name: str, spec: Gather, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `table`, `out`. Rows are runs."""
    k = Kernel(name, ("x", "table", "out"), machine)

    def turn(index: str) -> None:
        pair = k.step("%table", index, 8)
        source, target = (k.value(f"sext i32 {k.load('i32', k.at(pair, 4 * j), 4)} to i64") for j in (0, 1))
        x, out = k.at("%x", source), k.at("%out", target)
        if spec.run in (1, 4):
            type_ = "i8" if spec.run == 1 else "i32"
            k.store(type_, k.load(type_, x), out)
        else:
            k.call("llvm.memcpy.p0.p0.i64", out, x, str(spec.run), "false")

    k.each("%y0", "%y1", turn)
    return k


def table(sources: NDArray[np.int64], targets: NDArray[np.int64], element: int) -> tuple[Gather, NDArray[np.int32]]:
    """Return the kernel and its table for elements at these bytes: neighbours in both are one run."""
    run, size = element, len(sources)
    joined = (np.diff(sources) == element) & (np.diff(targets) == element)
    lengths = np.diff(np.concatenate(([-1], np.flatnonzero(~joined), [size - 1])))  # elements of each run
    elements = int(np.gcd.reduce(lengths))
    run = elements * element
    pairs = np.stack((sources[::elements], targets[::elements]), 1).astype(np.int32)
    return Gather(count=len(pairs), run=run), pairs
