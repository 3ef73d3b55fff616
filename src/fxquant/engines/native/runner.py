"""Runs a region in machine code; calls that it does not take run on oneDNN, by the lowered graph.

Code is made for the inputs of the first call, and for those of other sizes when they come again; it belongs to this
process. A region whose tensors or modes change gets new code; with hooks or under a mode of torch the lowered graph
runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.core.nodes import reads_size
from fxquant.engines.agreement import compare, nudge
from fxquant.engines.native.cache import Cache
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.program import Libraries, Program
from fxquant.engines.native.read import read
from fxquant.engines.native.scan import Scans
from fxquant.engines.native.settings import Native
from fxquant.engines.native.shapes import Unread, is_channels_last
from fxquant.engines.unsigned import move_up
from fxquant.engines.watch import Watch, watch
from fxquant.errors import FxQuantError, InputError
from fxquant.passes.fill_grids import filled_graph

log = logging.getLogger("fxquant")

Key = tuple[Any, ...]
Listener = Callable[[Program | None, list[Any]], None]  # gets the calls; see report/profile.py
MOST_PROGRAMS = 8
_MOST_SEEN = 64
_PLAIN = (type(None), bool, int, float, str)


def plain_graph(region: Region) -> fx.Graph:
    """The QDQ graph that a region was lowered from, with numbers in it, and unsigned tensors."""
    graph = filled_graph(region)
    move_up(graph)
    return graph


class NativeRunner:
    """The programs of one region, by the sizes that they are for; the least recently used is dropped."""

    def __init__(self, lowered: Any, machine: Machine, settings: Native) -> None:
        self.lowered = lowered
        self.machine = machine
        self.settings = settings
        self.failed = ""  # why no call is native
        self._forget()

    def _forget(self) -> None:
        self.watch: Watch | None = None
        self.placeholders: list[fx.Node] = []
        self.programs: OrderedDict[Key, Program] = OrderedDict()
        self.refused: dict[Key, str] = {}
        self.seen: set[Key] = set()
        cache = self.settings.cache
        self.libraries = Libraries(Cache(None if cache is None else Path(cache)))
        self.told: set[str] = set()
        self.listener: Callable[[Program | None, list[Any]], None] | None = (
            None  # gets the calls; see report/profile.py
        )
        self.outside: dict[str, str] = {}  # nodes that Python runs, and why
        self._lock = threading.RLock()
        self.scan = Scans(self.machine)  # all steps at once, of the step of a recurrent layer

    def renew(self) -> None:
        """The region has other tensors: its programs are made again from them."""
        self.lowered.renew()
        self.programs.clear()
        self.refused.clear()
        self.failed = ""
        self.placeholders = []
        self.scan = Scans(self.machine)

    @property
    def engine(self) -> str:
        return "onednn" if self.failed else "native"

    def __call__(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.failed:
            return self.lowered(region, args, kwargs)
        if self.lowered.hooks.listen(region):
            return self._pass_on(region, args, kwargs, "with hooks")
        if not compat.plain_mode():
            return self._pass_on(region, args, kwargs, "under autocast, tracing or a mode of torch")
        if not self.placeholders:
            self.placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
        inputs = bind(region, self.placeholders, args, kwargs)
        if inputs is not None and any(isinstance(value, Tensor) and not value.numel() for value in inputs):
            return _interpret(region, plain_graph(region), inputs)
        key = key_of(inputs) if inputs is not None else None
        if inputs is None or key is None:
            return self._pass_on(region, args, kwargs, "for arguments without a batch of tensors on the CPU")
        if self.watch is None or not self.watch.holds():
            with self._lock:
                self.programs.clear()
                self.refused.clear()
                self.watch = watch(region)
        program = self.programs.get(key)
        if program is not None and len(self.programs) == MOST_PROGRAMS:
            with contextlib.suppress(KeyError):  # another thread may have dropped it
                self.programs.move_to_end(key)
        if self.listener is not None:
            self.listener(program, inputs)
        if program is None:
            return self._first(region, key, inputs, args, kwargs)
        return _finish(program, inputs)

    def _first(self, region: Region, key: Key, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a size that there is no program for yet: it is made, and compared with the graph."""
        with self._lock:
            if key in self.refused:
                return self._pass_on(region, args, kwargs, "for inputs of some sizes", self.refused[key])
            graph = plain_graph(region)
            try:
                expected = _interpret(region, graph, inputs)
                if self.programs and key not in self.seen:  # sizes that come once are not worth the time
                    self._see(key)
                    return expected
                nudged = _interpret(region, graph, nudge(inputs))
            except (InputError, TypeError):  # inside a model, such calls run the user's code
                return self.lowered(region, args, kwargs)
            try:
                program = self.make(region, graph, inputs)
                found = _finish(program, inputs)
                compare(expected, nudged, found, "native")
            except Exception as error:  # a model runs, whatever is wrong with its code
                known = isinstance(error, (Unread, FxQuantError))
                self.refused[key] = str(error) if known else f"{type(error).__name__}: {error}"
                self._tell(region, "for inputs of some sizes", self.refused[key])
                return self.lowered(region, args, kwargs)
            self.keep(key, program)
            return found

    def _see(self, key: Key) -> None:
        if len(self.seen) >= _MOST_SEEN:
            self.seen.clear()
            self.refused.clear()
        self.seen.add(key)

    def make(self, region: Region, graph: fx.Graph, inputs: Sequence[Any]) -> Program:
        """A program for inputs of these sizes."""
        reader = read(region, graph, inputs, self.machine)
        if not reader.ops or not any(op.macs for op in reader.ops):
            raise Unread("it has no op with a native kernel")
        program = Program(reader, self.libraries)
        self.outside = {
            node.name: reader.reasons[node]
            for nodes in program.outside.values()
            for node in nodes
            if node in reader.reasons and not reads_size(node)
        }
        return program

    def keep(self, key: Key, program: Program) -> None:
        self.programs[key] = program
        while len(self.programs) > MOST_PROGRAMS:
            self.programs.popitem(last=False)

    def _pass_on(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any], when: str, why: str = "") -> Any:
        if when not in self.told:
            self._tell(region, when, why)
        return self.lowered(region, args, kwargs)

    def _tell(self, region: Region, when: str, why: str) -> None:
        self.told.add(when)
        name = region._region.path or type(region).__name__
        log.warning("%r runs on onednn, not native, %s. %s", name, when, why)

    def __getstate__(self) -> dict[str, Any]:
        return {"lowered": self.lowered, "machine": self.machine, "settings": self.settings, "failed": self.failed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _finish(program: Program, inputs: list[Any]) -> Any:
    first = next(value for value in inputs if isinstance(value, Tensor))
    with torch.no_grad():
        made = program.run(inputs, first.shape[0])
    codegen = program.codegen
    return codegen.process_outputs(made) if isinstance(codegen, fx.graph._PyTreeCodeGen) else made


def _interpret(region: Region, graph: fx.Graph, inputs: Sequence[Any]) -> Any:
    """What the QDQ graph itself returns."""
    with torch.no_grad():
        made = fx.Interpreter(region, graph=graph).run(*inputs, enable_io_processing=False)
    codegen = graph._codegen
    return codegen.process_outputs(made) if isinstance(codegen, fx.graph._PyTreeCodeGen) else made


def bind(
    region: Region, placeholders: list[fx.Node], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any] | None:
    """The values of the placeholders for a call; None if it does not fit."""
    if not kwargs and len(args) == len(placeholders) and type(region.graph._codegen) is fx.graph.CodeGen:
        return list(args)
    codegen = region.graph._codegen
    if isinstance(codegen, fx.graph._PyTreeCodeGen):
        try:
            return list(codegen.process_inputs(*args, **kwargs))
        except (TypeError, ValueError, RuntimeError):
            return None
    given = list(args)
    rest = dict(kwargs)
    if len(given) > len(placeholders):
        return None
    for node in placeholders[len(given) :]:
        name = str(node.target)
        if name in rest:
            given.append(rest.pop(name))
        elif node.args and not name.startswith("*"):
            given.append(node.args[0])
        else:
            return None
    return None if rest else given


def key_of(inputs: Sequence[Any]) -> Key | None:
    """What a program depends on; None if there is none for such inputs."""
    key: list[Any] = []
    batch = -1
    for value in inputs:
        if isinstance(value, Tensor):
            if type(value) not in (Tensor, torch.nn.Parameter) or not _is_plain(value):
                return None
            if batch not in (-1, value.shape[0]):
                return None
            batch = value.shape[0]
            key.append((value.dtype, value.shape[1:], is_channels_last(value)))
        elif isinstance(value, _PLAIN):
            key.append((type(value), value))
        else:
            return None
    return tuple(key) if batch > 0 else None


def _is_plain(value: Tensor) -> bool:
    usual = value.device.type == "cpu" and value.layout == torch.strided and value.dim() > 0
    return usual and math.prod(value.shape) > 0 and not value.is_neg() and not value.is_conj()
