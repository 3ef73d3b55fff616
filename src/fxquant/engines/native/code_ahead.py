"""Which kernels' code is asked for before they are called.

A network goes through all of its weights in each call, so its code is in no near cache any more when the next one
begins, and a CPU waits for it line by line. Data that is asked for comes to the second cache, which code is read from,
too. So the code of a kernel is asked for some calls before its first one; later ones find it there.
"""

from __future__ import annotations

from collections.abc import Sequence

from fxquant.engines.native.gemm_shape import LINE
from fxquant.engines.native.ir import Function

_EARLY = 2  # calls
_BYTES = 5  # of code that a line of IR becomes, about


def code_ahead(calls: Sequence[Sequence[Function]]) -> list[list[Function]]:
    """Return the kernels whose code is asked for before each call. `calls`: the kernels of each, in order."""
    found: list[list[Function]] = []
    asked: set[str] = set()
    for place in range(len(calls)):
        soon = {kernel.name: kernel for call in calls[place : place + _EARLY + 1] for kernel in call}
        found.append([kernel for name, kernel in soon.items() if name not in asked] if len(calls) > 1 else [])
        asked.update(soon)
    return found


def ask_for_code(f: Function, kernel: Function) -> None:
    """Ask for the code of a kernel of the same module."""

    def line(index: str) -> None:
        f.call("llvm.prefetch.p0", f.at(f"@{kernel.name}", index), "0", "2", "1")

    f.each(0, _BYTES * len(kernel.lines), line, LINE)
