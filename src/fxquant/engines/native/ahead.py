"""Which constants each matrix product asks for in advance.

The weights of a network seldom stay in the caches of a core from one call to the next, and a product that waits for
them takes up to half as long again. They lie in the order in which they are read. So each product asks, while it
computes, for what comes next: as late as possible, and no more at a time than its steps can ask for.

    reached[i]   up to where constants are near when product i begins: its own weights, or the first `_NEAR` bytes of
                 them, and what the steps of product i cannot ask for in time for the next one; never more than `_FAR`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fxquant.engines.native.gemm_shape import LINE, Gemm
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import Op, Pointer

_NEAR, _FAR = 512 << 10, 1 << 20  # bytes; a second cache has 1 or 2 MB
_SHARE = 0.5  # of the steps of a product that ask for a line


def ask_ahead(ops: Sequence[Op], size: int, machine: Machine) -> list[Op]:
    """Return the ops in order, with what each is to ask for; `size` is that of all constants."""
    ordered = sorted(ops, key=lambda op: op.level)
    products = [index for index, op in enumerate(ordered) if isinstance(op.spec, Gemm)]
    starts = [_start(ordered[index]) for index in products]
    reached = size
    for index, start, end in reversed([*zip(products, starts, [*starts, size][1:], strict=True)]):
        op = ordered[index]
        most = int(_SHARE * LINE * op.spec.steps(machine))
        first = min(start + _FAR, max(min(end, start + _NEAR), reached - most))
        if start <= first < reached:
            asked = Pointer(offset=first), Pointer(offset=min(reached, first + most))
            ordered[index] = replace(op, pointers=(*op.pointers[:-2], *asked))
        reached = first
    return ordered


def _start(op: Op) -> int:
    """Return where the weights of a product begin among the constants."""
    return op.pointers[1].offset
