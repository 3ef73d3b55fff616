"""The ops of a program one at a time, to time them and to look at what each writes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.engines.native.entry import entry
from fxquant.engines.native.libraries import Libraries, make_kernels
from fxquant.engines.native.ops import Op
from fxquant.engines.native.parts import aligned
from fxquant.engines.native.program import PROTOTYPE, Program
from fxquant.engines.native.values import View


class OneByOne:
    """The ops of a program, for one sample."""

    def __init__(self, program: Program, inputs: Sequence[object]) -> None:
        placement, machine = program.placement, program.machine
        kernels = make_kernels(placement, machine)
        entries = [entry(f"step{index}", [op], placement, kernels, machine) for index, op in enumerate(placement.ops)]
        entries.append(entry(f"step{len(placement.ops)}", [], placement, kernels, machine))
        self.ops: tuple[Op, ...] = placement.ops
        self.program = program
        self._library = Libraries().load([*kernels.values(), *entries], machine)
        self._functions = [PROTOTYPE(self._library.address(f"step{index}")) for index in range(len(placement.ops) + 1)]
        self._arena, self._kept = aligned(placement.arena), aligned(placement.kept)
        self._slots = (ctypes.c_void_p * max(program.slots, 1))()
        self.env: dict[fx.Node, Any] = {**program.fixed, **dict(zip(program.placeholders, inputs, strict=True))}
        self._alive: list[Tensor] = []
        for level in sorted({*program.levels, *program.outside}):  # once, so that all that is read is there
            for node in program.outside.get(level, ()):
                self.env[node] = program.call(node, self.env, 1)
            if level in program.levels:
                self._alive += program.hand_over(level, self.env, self._slots, 1)
                for index, op in enumerate(placement.ops):
                    if op.level == level:
                        self.run(index)

    def run(self, index: int) -> None:
        """Run one op."""
        self.bound(index)()

    def nothing(self) -> Callable[[], None]:
        """Return a call that runs no op: what calls from Python take by themselves."""
        return self.bound(len(self.ops))

    def bound(self, index: int) -> Callable[[], None]:
        """Return one op, ready to be called."""
        function: Callable[..., None] = self._functions[index]
        arena, kept, constants = (each.ctypes.data for each in (self._arena, self._kept, self.program.constants))
        slots = ctypes.addressof(self._slots)
        return lambda: function(arena, kept, constants, slots, 0, 1, 1, 0, 0)

    def outside(self) -> list[tuple[str, Callable[[], object]]]:
        """Return what Python runs between kernels: (what it is, the same ready to be called)."""
        nodes = [node for level in sorted(self.program.outside) for node in self.program.outside[level]]
        return [(_named(node), functools.partial(self.program.call, node, self.env, 1)) for node in nodes]

    def tensor(self, view: View) -> Tensor:
        """Return what a view of the arena holds now; it shares the memory."""
        assert view.buffer.space in ("arena", "kept")
        memory = self._arena if view.buffer.space == "arena" else self._kept
        start = view.buffer.offset
        part = memory[start : start + view.buffer.bytes].view(np.uint8 if view.dtype == "u8" else np.float32)
        return torch.from_numpy(part).as_strided(view.shape, view.strides, view.offset)


def _named(node: fx.Node) -> str:
    name = str(node.target) if node.op != "call_function" else getattr(node.target, "__name__", str(node.target))
    return f"{name}, in Python"
