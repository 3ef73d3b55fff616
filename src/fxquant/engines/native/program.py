"""A graph for inputs of one size: segments of machine code, with Python's ops between them."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from fxquant.core.nodes import reads_size
from fxquant.core.paths import get_attr
from fxquant.engines.native.cache import Cache, entry_name
from fxquant.engines.native.compiler import Library, module_text, object_code
from fxquant.engines.native.entry import entry
from fxquant.engines.native.ir import Function
from fxquant.engines.native.lazy import Outside
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.plan import Plan, place
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape
from fxquant.engines.native.threads import workers
from fxquant.engines.native.vector import Kernel

log = logging.getLogger("fxquant")

Bytes = NDArray[np.uint8]
_MOST_LIBRARIES = 8
_WORTH_THREADS = 10_000_000  # products, below which waking threads takes longer than the work
PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4, ctypes.c_void_p)


def aligned(size: int) -> Bytes:
    """Memory that begins at a multiple of 64 bytes."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def make_kernels(plan: Plan, machine: Machine) -> dict[tuple[object, object], Kernel]:
    """One function for each shape of a kernel."""
    made: dict[tuple[object, object], Kernel] = {}
    for op in plan.ops:
        if (op.emit, op.spec) not in made:
            made[op.emit, op.spec] = op.emit(f"k{len(made)}", op.spec, machine)
    return made


def make_functions(plan: Plan, machine: Machine) -> list[Function]:
    """The kernels, and the entries of each level: run0, run0_shared, run2, ..."""
    kernels = make_kernels(plan, machine)
    entries = []
    for level in sorted({op.level for op in plan.ops}):
        ops = [op for op in plan.ops if op.level == level]
        for shared in (False, True):
            name = f"run{level}{'_shared' if shared else ''}"
            entries.append(entry(name, ops, plan, kernels, machine, shared))
    return [*kernels.values(), *entries]


class Libraries:
    """Compiled code: what has the same text as one of the last is not compiled again."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache(None)
        self._known: OrderedDict[str, Library] = OrderedDict()

    def load(self, functions: Sequence[Function], machine: Machine) -> Library:
        """The functions, compiled or from the cache."""
        text = module_text(functions, machine)
        name = entry_name(text, machine)
        if name not in self._known:
            code = self.cache.load(name)
            if code is None:
                start = time.perf_counter()
                code = object_code(text, machine)
                if (spent := time.perf_counter() - start) > 1:
                    log.info("native code for %d functions was compiled in %.1f s", len(functions), spent)
                self.cache.store(name, code)
            self._known[name] = Library(code, machine)
            if len(self._known) > _MOST_LIBRARIES:  # programs have theirs as long as they are there
                self._known.popitem(last=False)
        return self._known[name]


def _plain(value: Any, env: dict[fx.Node, Any]) -> Any:
    """The argument of an output node with the values of its nodes, in containers that are not fx's."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, dict):
        return {key: _plain(each, env) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, env) for each in value]
    if isinstance(value, slice):
        return slice(*(_plain(each, env) for each in (value.start, value.stop, value.step)))
    if isinstance(value, tuple):
        made = tuple(_plain(each, env) for each in value)
        return type(value)(*made) if hasattr(value, "_fields") else made
    return value


class Program:
    """Runs a graph; several threads may. `shapes` of the inputs are fixed, but for the batch."""

    def __init__(self, reader: Reader, libraries: Libraries) -> None:
        self.machine = reader.machine
        self.region = reader.region
        self.codegen = reader.graph._codegen
        self.plan = place(reader.ops)
        self.levels = sorted({op.level for op in self.plan.ops})
        self.library = libraries.load(make_functions(self.plan, self.machine), self.machine)
        address = self.library.address
        self.functions = {level: PROTOTYPE(address(f"run{level}")) for level in self.levels}
        self.shared = {level: PROTOTYPE(address(f"run{level}_shared")) for level in self.levels}
        self.macs = sum(op.macs for op in self.plan.ops)
        packed = reader.constants.packed()
        self.constants = aligned(packed.nbytes)
        self.constants[:] = packed
        self._free: list[Bytes] = []
        self._lock = threading.Lock()
        self._read_steps(reader)

    def _read_steps(self, reader: Reader) -> None:
        """What is handed over, and what Python runs, by level."""
        nodes = list(reader.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.output = next(node for node in nodes if node.op == "output")
        self.shapes = reader.shapes
        self.exports = reader.exports
        self.slots = 1 + max((slot for slot in (*reader.imports, *(e.slot for e in self.exports.values()))), default=-1)
        self.imports: dict[int, list[Any]] = {level: [] for level in self.levels}
        for slot, made in reader.imports.items():
            users = [op.level for op in self.plan.ops if made.buffer in op.reads]
            if users:
                self.imports[min(users)].append((slot, made))
        needed = {made.node for each in self.imports.values() for _, made in each}
        needed.update(self.output.all_input_nodes)
        self.outside: dict[int, list[fx.Node]] = {}
        self.fixed: dict[fx.Node, Any] = {}
        for node in reversed(nodes):
            value = reader.values.get(node)
            if node not in needed or not isinstance(value, Outside) or node.op == "placeholder":
                continue
            needed.update(node.all_input_nodes)
            self.outside.setdefault(value.level, []).insert(0, node)
        for level in sorted(self.outside):
            for node in list(self.outside[level]):
                value = reader.values[node]
                if isinstance(value, Outside) and value.constant:
                    self.fixed[node] = self.call(node, self.fixed)
                    self.outside[level].remove(node)

    def run(self, inputs: Sequence[Any], batch: int) -> Any:
        """What the graph returns for the values of its placeholders."""
        env: dict[fx.Node, Any] = {**self.fixed, **dict(zip(self.placeholders, inputs, strict=True))}
        slots = (ctypes.c_void_p * max(self.slots, 1))()
        kept = np.empty(self.plan.kept * batch, np.uint8) if len(self.levels) > 1 else None
        alive: list[Tensor] = []
        threads = min(torch.get_num_threads(), os.cpu_count() or 1) if self.macs * batch >= _WORTH_THREADS else 1
        arenas = [self._take_arena()]
        try:
            for level in sorted({*self.levels, *self.outside}):
                for node in self.outside.get(level, ()):
                    env[node] = self.call(node, env, batch)
                if level in self.functions:
                    alive += self.hand_over(level, env, slots, batch)
                    self._run_segment(level, arenas, (kept, slots), batch, threads)
        finally:
            with self._lock:
                self._free += arenas
        for node in self.exports:
            shape = self.shapes[node]
            last = isinstance(shape, Shape) and shape.channels_last
            env[node] = env[node].contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        return _plain(self.output.args[0], env)

    def _run_segment(self, level: int, arenas: list[Bytes], memory: tuple[Any, Any], batch: int, threads: int) -> None:
        """One segment for all samples: threads take samples each, and do the rest together."""
        kept, slots = memory
        fixed = (
            0 if kept is None else kept.ctypes.data,
            self.constants.ctypes.data,
            ctypes.addressof(slots),
        )
        alone: Callable[..., None] = self.functions[level]
        together: Callable[..., None] = self.shared[level]
        done = 0
        if threads > 1:
            full = batch // threads * threads
            # the first arena is for what is done together: some threads get there before others are done alone
            while len(arenas) < (threads + 1 if full else 1):
                arenas.append(self._take_arena())
            places = [arena.ctypes.data for arena in arenas]
            count = ctypes.c_int64(0)

            def job(thread: int, of: int) -> None:
                if full:
                    share = full // of
                    alone(places[1 + thread], *fixed, thread * share, (thread + 1) * share, 0, 1, 0)
                if full < batch:
                    together(places[0], *fixed, full, batch, thread, of, ctypes.addressof(count))

            done = batch if workers().run(job, threads) else 0
        if done < batch:
            alone(arenas[0].ctypes.data, *fixed, done, batch, 0, 1, 0)

    def _take_arena(self) -> Bytes:
        with self._lock:
            if self._free:
                return self._free.pop()
        return aligned(self.plan.arena)

    def hand_over(self, level: int, env: dict[fx.Node, Any], slots: Any, batch: int) -> list[Tensor]:
        """Fill the slots of a segment: inputs as they are, outputs as new tensors, which are put into `env`."""
        alive = []
        for slot, made in self.imports[level]:
            tensor: Tensor = env[made.node].detach()
            layout = torch.channels_last if made.channels_last else torch.contiguous_format
            tensor = tensor.contiguous(memory_format=layout)
            slots[slot] = tensor.data_ptr()
            alive.append(tensor)
        for node, export in self.exports.items():
            if export.view.level != level:
                continue
            sizes = [export.view.shape[axis] for axis in export.dims]
            dtype = torch.uint8 if export.view.dtype == "u8" else torch.float32
            tensor = torch.empty((batch, *sizes), dtype=dtype)
            slots[export.slot] = tensor.data_ptr()
            alive.append(tensor)
            back = [0, *(1 + export.dims.index(axis) for axis in range(len(export.dims)))]
            env[node] = tensor.permute(back).movedim(0, export.axis)
        return alive

    def call(self, node: fx.Node, env: dict[fx.Node, Any], batch: int = 0) -> Any:
        """Run one of Python's nodes."""
        if node.op == "get_attr":
            return get_attr(self.region, str(node.target))

        def value(operand: fx.Node) -> Any:
            found = env.get(operand)
            shape = self.shapes[operand]
            if found is None and reads_size(node) and isinstance(shape, Shape):
                return torch.empty((batch, *shape.dims) if shape.batched else shape.dims, device="meta")
            if isinstance(found, Tensor) and operand in self.exports:
                found = env[operand] = found.contiguous()
            return found

        args, kwargs = fx.node.map_arg(node.args, value), fx.node.map_arg(node.kwargs, value)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = self.region.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        return function(*args, **kwargs)
