"""Placements -> compiled code, each once.

Code is looked up by what it is made from: the placement, and the sources of the generators. So where it is known, in
memory or on disk, not even its IR is written.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from rich.console import Console

from fxquant.engines.native.cache import Cache, entry_name
from fxquant.engines.native.compiler import Library, module_text, object_code
from fxquant.engines.native.crew import crew
from fxquant.engines.native.entry import entry
from fxquant.engines.native.ir import Function
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import Op, Pointer
from fxquant.engines.native.placement import Placement
from fxquant.engines.native.unchanged import look
from fxquant.engines.native.vector import Kernel

log = logging.getLogger("fxquant")

_MOST_LIBRARIES = 8
_LONG = 1.0  # seconds, after which one is told


def _sources() -> str:
    """Return a digest of the generators, taken as they are loaded."""
    files = importlib.resources.files(__package__).iterdir()
    made = hashlib.sha256()
    for file in sorted((file for file in files if file.is_file()), key=lambda file: file.name):
        made.update(file.name.encode() + file.read_bytes())
    return made.hexdigest()


SOURCES = _sources()


def make_kernels(placement: Placement, machine: Machine) -> dict[tuple[object, object], Kernel]:
    """One function for each shape of a kernel."""
    made: dict[tuple[object, object], Kernel] = {}
    for op in placement.ops:
        if (op.emit, op.spec) not in made:
            made[op.emit, op.spec] = op.emit(f"k{len(made)}", op.spec, machine)
    return made


def make_functions(placement: Placement, machine: Machine) -> list[Function]:
    """Return the kernels, the entries of each level (run0, run0_shared, run2, ...), and what else Python calls."""
    kernels = make_kernels(placement, machine)
    entries = []
    for level in sorted({op.level for op in placement.ops}):
        ops = [op for op in placement.ops if op.level == level]
        for shared in (False, True):
            name = f"run{level}{'_shared' if shared else ''}"
            entries.append(entry(name, ops, placement, kernels, machine, shared))
    return [*kernels.values(), *entries, *crew(machine), look()]


def _identity(placement: Placement) -> str:
    """Return all that the functions of a placement are made from, as text."""
    return repr((SOURCES, placement.kept, [_op(op) for op in placement.ops]))


def _op(op: Op) -> tuple[object, ...]:
    pointers = [_pointer(pointer) for pointer in op.pointers]
    return op.emit.__module__, op.emit.__qualname__, op.spec, op.level, op.rows, op.grain, op.blocks, pointers


def _pointer(pointer: Pointer) -> tuple[object, ...]:
    buffer = pointer.buffer
    if buffer is None:
        return (pointer.offset,)
    return pointer.offset, buffer.space, buffer.offset, buffer.slot, buffer.step


class Libraries:
    """Compiled code: what is one of the last is not compiled again."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache(None)
        self._known: OrderedDict[str, Library] = OrderedDict()

    def of_placement(self, placement: Placement, machine: Machine) -> tuple[str, Library]:
        """Return the functions of a placement, with the name of their code."""
        identity = _identity(placement)
        return entry_name(identity, machine), self._load(identity, machine, lambda: make_functions(placement, machine))

    def of_name(self, name: str, machine: Machine) -> Library | None:
        """Return the functions of code with this name, if it is there."""
        if name not in self._known:
            code = self.cache.load(name)
            if code is None:
                return None
            self._add(name, Library(code, machine))
        return self._known[name]

    def load(self, functions: Sequence[Function], machine: Machine) -> Library:
        """Functions that are there already."""
        return self._load(module_text(functions, machine), machine, lambda: functions)

    def _load(self, identity: str, machine: Machine, make: Callable[[], Sequence[Function]]) -> Library:
        name = entry_name(identity, machine)
        if name not in self._known:
            code = self.cache.load(name)
            if code is None:
                code = _compile(make(), machine)
                self.cache.store(name, code)
            self._add(name, Library(code, machine))
        return self._known[name]

    def _add(self, name: str, library: Library) -> None:
        self._known[name] = library
        if len(self._known) > _MOST_LIBRARIES:  # programs have theirs as long as they are there
            self._known.popitem(last=False)


def _compile(functions: Sequence[Function], machine: Machine) -> bytes:
    """Compile functions; whoever waits for it at a terminal is told."""
    start = time.perf_counter()
    timer = threading.Timer(_LONG, _say, (len(functions),))
    timer.daemon = True
    timer.start()
    try:
        code = object_code(module_text(functions, machine), machine)
    finally:
        timer.cancel()
    log.info("native code for %d functions was compiled in %.1f s", len(functions), time.perf_counter() - start)
    return code


def _say(count: int) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"compiling native code ({count} functions), once for this model ...", style="dim")
