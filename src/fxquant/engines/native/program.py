"""A graph for inputs of one size: segments of machine code, with Python's ops between them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.capture import guards
from fxquant.engines.native.ahead import ask_ahead
from fxquant.engines.native.compiler import Library
from fxquant.engines.native.entry import COUNT_BYTES
from fxquant.engines.native.lazy import Outside
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.node_call import NodeCall, node_call
from fxquant.engines.native.parts import Arena, Bytes, Parts, Sizes, lasting
from fxquant.engines.native.placement import Placement, place
from fxquant.engines.native.plain import returned
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.results import Env, Result, plain
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.slots import Export, Import
from fxquant.engines.native.threads import Job, workers
from fxquant.engines.onednn.unsigned import nan_of
from fxquant.errors import InputError
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region

_CHECKS = (
    *(guards.check_fixed, guards.check_given, guards.check_same),
    *(guards.check_items, guards.check_key, guards.check_sizes),
)
_MOST_CHECKED = 64
_READS, _CALL = (60e9, 30e9, 10e9), 1e-4  # see Program.pays
_OP, _NEAR, _TOGETHER = 1e-8, 120e9, 8e-6  # seconds of a short kernel, bytes a second of weights in near caches,
# and the seconds that it takes to take rows together
_WORTH_THREADS = 10_000_000  # products, below which waking threads takes longer than the work
NOWHERE: Mapping[str, Tensor] = MappingProxyType({})
PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 4, ctypes.c_void_p)


Slots: TypeAlias = "ctypes.Array[ctypes.c_void_p]"  # where the inputs and outputs of a segment are


class Program:
    """Runs a graph; several threads may. `shapes` of the inputs are fixed, but for the batch."""

    def __init__(self, reader: Reader, libraries: Libraries) -> None:
        placement = place(ask_ahead(reader.ops, reader.constants.size, reader.machine))
        self._placement: Placement | None = placement
        self.levels = sorted({op.level for op in placement.ops})
        self.sizes = Sizes(
            arena=placement.arena,
            kept=placement.kept,
            macs=sum(op.macs for op in placement.ops),
            single=sum(op.macs for op in placement.ops if op.single),
            products=sum(op.macs > 0 for op in placement.ops),
            ops=len(placement.ops),
        )
        self.whole = reader.whole
        self.signed = any(
            nan_of(node) for node in reader.graph.nodes
        )  # NaN of inputs may get lost on the way to a grid
        self._set_up(reader.region, reader.graph, reader.machine)
        self._set_code(*libraries.of_placement(placement, reader.machine), reader.constants.packed())
        self._read_steps(reader)

    @classmethod
    def from_parts(
        cls, region: Region, graph: fx.Graph, machine: Machine, code: tuple[str, Library, Bytes], parts: Parts
    ) -> Program:
        """Make a program of what was kept of one like it; `code` is its name, the functions, and the constants."""
        made = cls.__new__(cls)
        made._placement, made.levels, made.sizes, made.signed = None, parts.levels, parts.sizes, parts.signed
        made.whole, made.flag = False, -1
        made._set_up(region, graph, machine)
        made._set_code(*code)
        made._set_slots(parts.slots)
        made.imports, made.results, made.by_row = parts.imports, parts.results, parts.by_row
        made._shared, made._order = [], list(parts.levels)
        made.set_orders([result.order for each in parts.results.values() for result in each])
        return made

    def _set_up(self, region: Region, graph: fx.Graph, machine: Machine) -> None:
        self.region, self.graph, self.machine = region, graph, machine
        self.placeholders = graph.find_nodes(op="placeholder")
        (self.output,) = graph.find_nodes(op="output")
        self.free: list[Arena] = []
        self.checks: list[fx.Node] = []
        self.checked: set[int] = set()
        self.outside: dict[int, list[fx.Node]] = {}
        self.fixed: dict[fx.Node, Any] = {}
        self.exports: Mapping[fx.Node, Export] = {}
        self._by_node: dict[fx.Node, Result] = {}  # those that are not written as callers get them
        self._calls: dict[fx.Node, NodeCall] = {}
        self.by_row: bool | None = None  # not known yet
        self.remake: Callable[[], Program] | None = None  # how one from disk is read again

    def _set_code(self, name: str, library: Library, constants: Bytes) -> None:
        self.name, self.library = name, library
        self.functions = {level: PROTOTYPE(library.address(f"run{level}")) for level in self.levels}
        names = {level: (f"run{level}", f"run{level}_shared") for level in self.levels}
        self._addresses = {level: (library.address(one), library.address(all_)) for level, (one, all_) in names.items()}
        self.constants = lasting(constants.nbytes)
        self.constants[:] = constants
        self._constants_at = self.constants.ctypes.data

    def _set_slots(self, count: int) -> None:
        self.slots = count
        self.slot_array = ctypes.c_void_p * max(count, 1)

    @property
    def placement(self) -> Placement:
        """The ops, which a program from disk does not need to run."""
        if self._placement is None:
            assert self.remake is not None
            self._placement = self.remake().placement
        return self._placement

    def _read_steps(self, reader: Reader) -> None:
        """What is handed over, and what Python runs, by level."""
        nodes = list(reader.graph.nodes)
        self.shapes = reader.shapes
        self.exports = reader.exports
        self.flag = -1 if reader.flag is None else reader.flag.slot
        slots = (*reader.imports, *(export.slot for export in self.exports.values()), self.flag)
        self._set_slots(1 + max(slots, default=-1))
        self.imports: dict[int, list[tuple[int, Import]]] = {level: [] for level in self.levels}
        for slot, made in reader.imports.items():
            users = [op.level for op in self.placement.ops if made.buffer in op.reads]
            if users:
                self.imports[min(users)].append((slot, made))
        needed = {made.node for each in self.imports.values() for _, made in each}
        needed.update(self.output.all_input_nodes)
        self.results: dict[int, list[Result]] = {level: [] for level in self.levels}
        for node, export in self.exports.items():
            self.results[export.view.level].append(Result.of(node, export))
        for node in reversed(nodes):
            value = reader.values.get(node)
            if node not in needed or not isinstance(value, Outside) or node.op == "placeholder":
                continue
            needed.update(node.all_input_nodes)
            self.outside.setdefault(value.level, []).insert(0, node)
        self._read_checks(nodes, needed)
        for level in sorted(self.outside):
            for node in list(self.outside[level]):
                value = reader.values[node]
                if isinstance(value, Outside) and value.constant:
                    self.fixed[node] = self.call(node, self.fixed)
                    self.outside[level].remove(node)
        self.outside = {level: found for level, found in self.outside.items() if found}
        self._order = sorted({*self.levels, *self.outside})
        self.set_orders(self.orders)
        returned = self.output.all_input_nodes
        self._shared = [node for node in returned if isinstance(self.fixed.get(node), Tensor) and node.op != "get_attr"]

    def is_short(self, batch: int) -> bool:
        """Tell whether samples that are run one by one take no longer than to take their rows together."""
        return batch * (_OP * self.sizes.ops + self.sizes.single / _NEAR) < _TOGETHER

    def pays(self, batch: int) -> bool:
        """Tell whether a batch is run faster here than as products of matrices.

        Samples are run one by one. A linear layer that has one row in a sample reads all its weights each time; as a
        product with all rows of the batch it reads them once, and Python calls each layer. Rates are rough, in
        bytes and products a second. What finds the range of a tensor takes one sample alone.
        """
        if self.whole and batch != 1:
            return False
        if batch == 1 or not self.sizes.single:
            return True
        near, middle, far = _READS
        read = self.sizes.single / (near if self.sizes.single < 1.5e6 else middle if self.sizes.single < 30e6 else far)
        rest = self.sizes.macs - self.sizes.single
        rate, calls = self.machine.rate, self.sizes.products
        here = batch * (read + rest / rate)
        there = max(read, batch * self.sizes.single / rate) + 1.1 * batch * rest / rate + _CALL * calls
        return here < there

    @property
    def seen(self) -> list[fx.Node]:
        """The nodes whose tensors callers or Python's ops get."""
        return [result.node for each in self.results.values() for result in each]

    def lay_out(self, orders: Mapping[fx.Node, tuple[int, ...]]) -> None:
        """Let results lie in memory as those of the graph, of which these are the orders of axes."""
        self.set_orders([orders.get(node, ()) for node in self.seen])

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """How results lie in memory."""
        return [result.order for each in self.results.values() for result in each]

    def set_orders(self, orders: Sequence[tuple[int, ...]]) -> None:
        """Let results lie in memory as those of another program of the same graph."""
        found = [result for each in self.results.values() for result in each]
        for result, order in zip(found, orders, strict=True):
            result.order = tuple(order)
        self._moved = [result for result in found if result.order or result.back is not None]
        self._by_node = {result.node: result for result in self._moved}

    def _read_checks(self, nodes: list[fx.Node], done: set[fx.Node]) -> None:
        """Nodes that only raise, with what only they need. They look at sizes, so once for each batch is enough."""
        wanted = {node for node in nodes if node.op == "call_function" and node.target in _CHECKS}
        for node in reversed(nodes):
            if node in wanted and node not in done and node.op not in ("placeholder", "get_attr"):
                known = reads_size(node) and all(
                    isinstance(self.shapes.get(each), Shape) for each in node.all_input_nodes
                )
                wanted.update(() if known else node.all_input_nodes)
                self.checks.insert(0, node)

    def _check(self, env: Env, batch: int) -> None:
        for node in self.checks:
            try:
                env[node] = self.call(node, env, batch)
            except InputError as error:
                raise Unread(str(error)) from error
        if len(self.checked) < _MOST_CHECKED:
            self.checked.add(batch)

    def answer(self, inputs: Sequence[object], batch: int, into: Mapping[str, Tensor] = NOWHERE) -> object:
        """Return what the caller of the graph gets."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return returned(self.graph, self.run(inputs, batch, into))
        return returned(self.graph, self.run(inputs, batch, into))

    def run(self, inputs: Sequence[object], batch: int, into: Mapping[str, Tensor] = NOWHERE) -> object:
        """Return what the graph returns for the values of its placeholders. `into`: where results go, by node."""
        env: Env = dict(zip(self.placeholders, inputs, strict=True))
        if self.fixed:
            env.update(self.fixed)
        slots = self.slot_array()
        flag = self.raise_flag(slots)
        kept = np.empty(self.sizes.kept * batch, np.uint8) if len(self.levels) > 1 else None
        alive: list[Tensor] = []
        threads = self.threads(batch)
        arenas = [self.take_arena()]
        try:
            for level in self._order:
                for node in self.outside.get(level, ()):
                    env[node] = self.call(node, env, batch)
                if level in self.functions:
                    alive += self.hand_over(level, env, slots, batch, into)
                    self._run_segment(level, arenas, (kept, slots), batch, threads)
        finally:
            self.free += arenas
        look_at(flag)
        if self.checks and batch not in self.checked:
            self._check(env, batch)
        for result in self._moved:
            env[result.node] = result.lie(env[result.node])
        for node in self._shared:
            env[node] = env[node].clone()  # whoever gets it may write to it
        return plain(self.output.args[0], env)

    def _run_segment(
        self, level: int, arenas: list[Arena], memory: tuple[Bytes | None, Slots], batch: int, threads: int
    ) -> None:
        """One segment for all samples: threads take one after the other, and do the last ones together."""
        kept, slots = memory
        fixed = (
            0 if kept is None else kept.ctypes.data,
            self._constants_at,
            ctypes.addressof(slots),
        )
        if threads > 1:
            full = batch // threads * threads
            # the first arena is for what is done together: some threads get there before others are done alone
            while len(arenas) < (threads + 1 if full else 1):
                arenas.append(self.take_arena())
            counts = (ctypes.c_int64 * (COUNT_BYTES // 8 * self.sizes.ops * (batch - full)))()
            job = Job(
                self._addresses[level],
                fixed,
                [arena.address for arena in arenas],
                (full, batch, threads),
                ctypes.addressof(counts),
                (self, memory, counts),
            )
            if workers(self.library).run(job):
                return
        alone: Callable[..., None] = self.functions[level]
        alone(arenas[0].address, *fixed, 0, batch, 1, 0, 0)

    def threads(self, batch: int) -> int:
        """Tell how many threads take a batch."""
        if self.sizes.macs * batch < _WORTH_THREADS or (threads := torch.get_num_threads()) == 1:
            return 1
        return min(threads, os.cpu_count() or 1)

    def run_level(self, level: int, slots: Slots, batch: int, threads: int) -> None:
        """Run a segment that is the only one, on tensors whose addresses are in the slots."""
        arenas = [self.take_arena()]
        try:
            self._run_segment(level, arenas, (None, slots), batch, threads)
        finally:
            self.free += arenas

    def run_alone(self, level: int, slots: Slots, batch: int) -> None:
        """Do the same on this thread."""
        arena = self.take_arena()
        self.functions[level](arena.address, 0, self._constants_at, ctypes.addressof(slots), 0, batch, 1, 0, 0)
        self.free.append(arena)

    def raise_flag(self, slots: Slots) -> ctypes.c_int64 | None:
        """Give kernels a word of this call, which they set where an input has no answer; see `look_at`."""
        if self.flag < 0:
            return None
        flag = ctypes.c_int64(0)
        slots[self.flag] = ctypes.addressof(flag)
        return flag

    def take_arena(self) -> Arena:
        """Return memory that no other thread uses. It goes back to `free`; lists of Python need no lock for that."""
        try:
            return self.free.pop()
        except IndexError:
            return Arena(self.sizes.arena)

    def hand_over(
        self, level: int, env: Env, slots: Slots, batch: int, into: Mapping[str, Tensor] = NOWHERE
    ) -> list[Tensor]:
        """Fill the slots of a segment: inputs as they are, outputs as new tensors, which are put into `env`."""
        alive = []
        for slot, made in self.imports[level]:
            tensor: Tensor = env[made.node]
            if not made.fits(tensor, batch):
                raise Unread(f"{made.node.name} is of another size or dtype than in the first call")
            if not tensor.is_contiguous(memory_format=made.layout):
                tensor = tensor.detach().contiguous(memory_format=made.layout)
                alive.append(tensor)
            slots[slot] = tensor.data_ptr()
        for result in self.results[level]:
            place = into.get(result.node.name)
            tensor = torch.empty((batch, *result.sizes), dtype=result.dtype, device="cpu") if place is None else place
            slots[result.slot] = tensor.data_ptr()
            env[result.node] = result.place(tensor)
            alive.append(tensor)
        return alive

    def call(self, node: fx.Node, env: Env, batch: int = 0) -> object:
        """Run one of Python's nodes."""
        call = self._calls.get(node)
        if call is None:
            self._calls[node] = call = node_call(self.region, node)
        if reads_size(node):  # of tensors that may not be there
            return call({operand: self._sized(operand, env, batch) for operand in node.all_input_nodes})
        for operand in node.all_input_nodes:
            if operand in self._by_node:
                env[operand] = self._by_node[operand].lie(env[operand])
        return call(env)

    def _sized(self, operand: fx.Node, env: Env, batch: int) -> object:
        shape = self.shapes[operand]
        if operand in env or not isinstance(shape, Shape):
            return env.get(operand)
        return torch.empty((batch, *shape.dims) if shape.batched else shape.dims, device="meta")


def look_at(flag: ctypes.c_int64 | None) -> None:
    """Raise if a kernel has set the flag of a call: torch's ops have the error for that."""
    if flag is not None and flag.value:
        raise Unread("an embedding has no row for an id")
