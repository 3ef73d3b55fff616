"""Functions that call kernels and each other: they have arguments of their own, and wait for one another."""

from __future__ import annotations

from collections.abc import Callable

from fxquant.engines.native.ir import Function
from fxquant.engines.native.machine import Machine

# of an entry point of a program
ARGUMENTS = (
    *("ptr %arena", "ptr %kept", "ptr %constants", "ptr %slots"),
    *("i64 %first", "i64 %last", "i64 %threads", "i64 %thread", "ptr %counts"),
)
_SPINS, _SLEEP = 4000, 50  # looks, then microseconds


class Caller(Function):
    """A function without a result, which Python may call."""

    def __init__(self, name: str, arguments: tuple[str, ...], machine: Machine) -> None:
        super().__init__(name, ())
        self.lines = [f"define void @{name}({', '.join(arguments)}) #0 {{", "entry:"]
        self.machine = machine

    def seen(self, address: str) -> str:
        """Return a number that other threads write."""
        return self.value(f"load atomic i64, ptr {address} seq_cst, align 8")

    def show(self, number: str | int, address: str) -> None:
        """Store a number that other threads look at."""
        self.do(f"store atomic i64 {number}, ptr {address} seq_cst, align 8")

    def is_equal(self, a: str, b: str | int, type_: str = "i64") -> str:
        return self.value(f"icmp eq {type_} {a}, {b}")

    def spin(self, turn: str, again: str, otherwise: str) -> str:
        """Go to `again` in the first turns, else to `otherwise`; return the number of the next turn."""
        after, label = self.value(f"add i64 {turn}, 1"), f"spin{self.fresh()}"
        early = self.value(f"icmp slt i64 {turn}, {_SPINS}")
        self.do(f"br i1 {early}, label %{label}, label %{otherwise}")
        self.label(label)
        if self.machine.triple.startswith("x86"):
            self.call("llvm.x86.sse2.pause")
        self.do(f"br label %{again}")
        return after

    def wait(self, is_over: Callable[[], str]) -> None:
        """Look again and again until an i1 holds: at once for a while, then after a sleep."""
        label, before = f"wait{self.fresh()}", self.block
        self.do(f"br label %{label}")
        self.label(label)
        place = len(self.lines)
        self.lines.append("")
        turn = f"%t{self.fresh()}"
        self.do(f"br i1 {is_over()}, label %{label}.end, label %{label}.again")
        self.label(f"{label}.again")
        after = self.spin(turn, label, f"{label}.sleep")
        spun = self.block
        self.label(f"{label}.sleep")
        self.call("usleep", str(_SLEEP))
        self.do(f"br label %{label}")
        starts = f"[ 0, %{before} ], [ {after}, %{spun} ], [ {after}, %{label}.sleep ]"
        self.lines[place] = f"  {turn} = phi i64 {starts}"
        self.label(f"{label}.end")
