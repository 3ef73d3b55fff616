"""A square of floats in registers, turned."""

from __future__ import annotations

from fxquant.engines.native.vector import Kernel, indices


def transpose(k: Kernel, rows: list[str]) -> list[str]:
    """A square of floats, as many rows as a vector has elements, with rows and columns swapped."""
    n = len(rows)
    bit = 1
    while bit < n:
        low = indices([lane if not lane & bit else n + (lane ^ bit) for lane in range(n)])
        high = indices([lane | bit if not lane & bit else n + lane for lane in range(n)])
        made = list(rows)
        for row in range(n):
            if not row & bit:
                both = f"<{n} x float> {rows[row]}, <{n} x float> {rows[row | bit]}"
                made[row] = k.value(f"shufflevector {both}, {low}")
                made[row | bit] = k.value(f"shufflevector {both}, {high}")
        rows, bit = made, 2 * bit
    return rows
