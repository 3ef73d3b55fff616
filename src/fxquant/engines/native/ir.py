"""LLVM IR as text: one function, its values as SSA names, its loops as phis."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fxquant.engines.native.intrinsics import INTRINSICS

Body = Callable[[str, list[str]], list[str]]


def number(value: float) -> str:
    """Return a float constant as LLVM reads it: the bits of the double that equals the float32."""
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return "0x" + struct.pack(">d", rounded).hex().upper()


@dataclass(frozen=True, kw_only=True, slots=True)
class Carry:
    """A value that goes from one turn of a loop to the next."""

    type: str
    start: str


class Function:
    """A kernel that is being written. Its arguments are pointers, and the range of rows and of blocks that it is to do.

    `void @name(ptr %a, ptr %b, ..., i64 %y0, i64 %y1, i64 %n0, i64 %n1)`
    """

    def __init__(self, name: str, pointers: Sequence[str]) -> None:
        self.name = name
        self.pointers = tuple(pointers)
        arguments = [f"ptr %{pointer}" for pointer in pointers]
        arguments += [f"i64 %{bound}" for bound in ("y0", "y1", "n0", "n1")]
        self.lines = [f"define internal void @{name}({', '.join(arguments)}) #0 {{", "entry:"]
        self.first: list[str] = []  # lines that come before the others
        self.block = "entry"
        self.used: set[str] = set()  # intrinsics
        self._count = 0

    def text(self) -> str:
        return "\n".join((*self.lines[:2], *self.first, *self.lines[2:], "  ret void", "}"))

    def fresh(self) -> int:
        self._count += 1
        return self._count

    def value(self, instruction: str) -> str:
        """Write an instruction that has a result, and return its name."""
        name = f"%v{self.fresh()}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def call(self, name: str, *arguments: str) -> str:
        """Call an intrinsic of the table; its result, or "" if it has none."""
        result, types = INTRINSICS[name]
        assert len(types) == len(arguments), name
        self.used.add(name)
        given = ", ".join(f"{type_} {argument}" for type_, argument in zip(types, arguments, strict=True))
        if result == "void":
            self.do(f"call void @{name}({given})")
            return ""
        return self.value(f"call {result} @{name}({given})")

    # integers and addresses

    def add(self, a: str, b: str | int) -> str:
        return a if b == 0 else self.value(f"add nsw i64 {a}, {b}")

    def mul(self, a: str, b: int) -> str:
        return a if b == 1 else self.value(f"mul nsw i64 {a}, {b}")

    def at(self, base: str, offset: str | int) -> str:
        """Return the address some bytes after another."""
        return base if offset in (0, "0") else self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def step(self, base: str, index: str, size: int) -> str:
        """Return the address of element `index` of those of `size` bytes from a base on."""
        if index.lstrip("-").isdigit():
            return self.at(base, int(index) * size)
        return base if size == 0 else self.at(base, self.mul(index, size))

    def load(self, type_: str, address: str, align: int = 1) -> str:
        return self.value(f"load {type_}, ptr {address}, align {align}")

    def store(self, type_: str, value: str, address: str, align: int = 1) -> None:
        self.do(f"store {type_} {value}, ptr {address}, align {align}")

    def scratch(self, size: int) -> str:
        """Return the address of memory of the call's own, in whole lines."""
        name = f"%scratch{self.fresh()}"
        self.first.append(f"  {name} = alloca [{size} x i8], align 64")
        return name

    # control

    def loop(
        self,
        low: str | int,
        high: str | int,
        step: int,
        body: Body,
        carries: Sequence[Carry] = (),
        guard: bool = False,
        apart: bool = False,
    ) -> list[str]:
        """for i in range(low, high, step): values = body(i, values). The values after the last turn.

        It runs at least once, unless `guard` asks for a look before; then it carries nothing. `apart` makes a loop of a
        single turn, too: LLVM orders the code of a block anew, and spills registers where it mixes body and rest.
        """
        start = [carry.start for carry in carries]
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return start
            if high - low <= step and not apart:
                return body(str(low), start)
        assert not (guard and carries)
        label, before = f"loop{self.fresh()}", self.block
        if guard:
            some = self.value(f"icmp slt i64 {low}, {high}")
            self.do(f"br i1 {some}, label %{label}, label %{label}.end")
        else:
            self.do(f"br label %{label}")
        self.label(label)
        index = f"%i{self.fresh()}"
        names = [f"%c{self.fresh()}" for _ in carries]
        first = len(self.lines)
        self.lines += [""] * (1 + len(names))
        after = body(index, names)
        next_index = self.value(f"add nsw i64 {index}, {step}")
        again = self.value(f"icmp slt i64 {next_index}, {high}")
        last = self.block
        self.do(f"br i1 {again}, label %{label}, label %{label}.end")
        self.lines[first] = f"  {index} = phi i64 [ {low}, %{before} ], [ {next_index}, %{last} ]"
        for place, (name, carry, value) in enumerate(zip(names, carries, after, strict=True)):
            incoming = f"[ {carry.start}, %{before} ], [ {value}, %{last} ]"
            self.lines[first + 1 + place] = f"  {name} = phi {carry.type} {incoming}"
        self.label(f"{label}.end")
        return after

    def each(self, low: str | int, high: str | int, body: Callable[[str], None], step: int = 1) -> None:
        """The same without values; bounds that are not numbers are looked at before the first turn."""

        def turn(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        self.loop(low, high, step, turn, guard=not (isinstance(low, int) and isinstance(high, int)))

    def when(self, condition: str, body: Callable[[], None]) -> None:
        """Run the body if an i1 holds."""
        label = f"if{self.fresh()}"
        self.do(f"br i1 {condition}, label %{label}, label %{label}.end")
        self.label(label)
        body()
        self.do(f"br label %{label}.end")
        self.label(f"{label}.end")
