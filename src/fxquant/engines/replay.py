"""Runs of a lowered graph, kept: torch's C++ interpreter repeats what Python did, without Python between the kernels.

A call with inputs of sizes seen before is written down (`tape.py`), tried, and compared with what Python gave; later
calls run in C++. A kernel of some ten microseconds waits about as long for Python, longer when the caches are cold.
What the text of a run does not show (sizes, modes, hooks, weights put in later) is looked at before each call, and if
it is not as it was, Python runs the graph.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import _get_qualified_name
from torch.utils import _pytree as pytree

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.core.paths import get_attr
from fxquant.engines.hooks import Hooks
from fxquant.engines.tape import Tape
from fxquant.engines.watch import Watch, called_modules, watch

log = logging.getLogger("fxquant")

Key = tuple[Any, ...]
_KNOWN = ("torch", "_operator", "builtins", "math", "fxquant")  # packages whose functions do what their ops show
_MOST_SEEN = 64
MOST_RUNS = 8


@dataclass(kw_only=True, slots=True)
class _Run:
    """One run: the function, what it is given besides the inputs, and what it relies on."""

    function: Callable[..., Any]
    held: list[Tensor]
    leaves: list[Any]  # of the outputs; a tensor is given as [its index]
    spec: pytree.TreeSpec | None  # None for one tensor
    watch: Watch
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """The outputs. Called by one thread at a time, which holds `lock`."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                made = self.function(*tensors, self.held)
        else:
            made = self.function(*tensors, self.held)
        if self.spec is None:
            return made
        made = made if isinstance(made, tuple) else (made,)
        return pytree.tree_unflatten([made[leaf[0]] if type(leaf) is list else leaf for leaf in self.leaves], self.spec)


class Replay:
    """The runs of one region, by what it was called with. They belong to this process: a copy starts anew."""

    engine = "onednn"

    def __init__(self) -> None:
        self.runs: dict[Key, _Run] = {}
        self.refused: dict[Key | None, str] = {}  # what Python has to run, and why; None stands for all calls
        self.seen: set[Key] = set()
        self.last: Key | None = None
        self.hooks = Hooks()

    def __call__(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.hooks.listen(region) or None in self.refused or not compat.plain_mode():
            return region.run_graph(args, kwargs)
        # few steps until the run: after one the caches are cold, and each costs several times what it does in a loop
        tensors: Sequence[Tensor] = args
        key = None if kwargs else _key(args, None)
        if key is None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            key = _key(leaves, spec)
        if key is None:
            return region.run_graph(args, kwargs)
        run = self.runs.get(key)
        if run is not None and run.watch.holds():
            if not run.lock.acquire(blocking=False):
                return region.run_graph(args, kwargs)  # another thread is at it
            try:
                return run(tensors)
            finally:
                run.lock.release()
        self.runs.pop(key, None)
        if key in self.refused or not self._comes_again(key):
            return region.run_graph(args, kwargs)
        return self._record(region, key, tensors, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Replay, ()

    def renew(self) -> None:
        """The graph was made again, or its tensors are others: forget what was kept."""
        self.__init__()  # type: ignore[misc]

    def _comes_again(self, key: Key) -> bool:
        """Whether a run is worth keeping: it was seen before, or just before if another has to go for it."""
        again = key in self.seen if len(self.runs) < MOST_RUNS else key == self.last
        if len(self.seen) >= _MOST_SEEN:
            self.seen.clear()
            self.refused.clear()
        self.seen.add(key)
        self.last = key
        return again

    def _record(
        self, region: Region, key: Key, tensors: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the graph by Python, and keep the run if it can be."""
        reason = _unknown_code(region)
        if reason:
            return self._refuse(None, reason, region.run_graph(args, kwargs))
        tape = Tape(list(tensors))
        with tape:
            result = pytree.tree_map_only(Tensor, tape.own, region.run_graph(args, kwargs))
        leaves, spec = ([result], None) if isinstance(result, Tensor) else pytree.tree_flatten(result)
        outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reason = tape.refused or _unknown_input(region, tensors) or _unknown_output(leaves)
        function = compat.interpreted(tape.text(outputs)) if not reason else None
        if function is None:
            return self._refuse(key, reason or "torch's interpreter does not take the graph", result)
        index = {id(output): place for place, output in enumerate(outputs)}
        run = _Run(
            function=function,
            held=tape.held,
            leaves=[[index[id(leaf)]] if isinstance(leaf, Tensor) else leaf for leaf in leaves],
            spec=spec,
            watch=watch(region, tape.held),
        )
        for _ in range(2):  # the interpreter watches the first run and optimizes in the second
            with torch.random.fork_rng(devices=[]):
                again = [leaf for leaf in pytree.tree_leaves(run(tensors)) if isinstance(leaf, Tensor)]
            if not all(map(_same, outputs, again)):
                return self._refuse(key, "two runs differ", result)
        while len(self.runs) >= MOST_RUNS:
            del self.runs[next(iter(self.runs))]
        self.runs[key] = run
        return result

    def _refuse(self, key: Key | None, reason: str, result: Any) -> Any:
        self.refused[key] = reason
        log.debug("the graph is run by Python: %s", reason)
        return result


def _key(leaves: Sequence[Any], spec: pytree.TreeSpec | None) -> Key | None:
    """What a run depends on besides weights and modes; None if there is no telling.

    Without a `spec` the leaves are tensors.
    """
    key: list[Any] = [spec, torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    if len(leaves) > 1:  # which of them are one and the same
        numbers = [id(leaf) for leaf in leaves]
        key.extend(map(numbers.index, numbers))
    for leaf in leaves:
        if type(leaf) is Tensor and leaf.layout == torch.strided:
            key.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
        elif spec is not None and (leaf is None or isinstance(leaf, (bool, int, float, str))):
            key.append((type(leaf), leaf))
        else:
            return None
    return tuple(key)


def _unknown_code(region: Region) -> str:
    """Why the graph may do more than its ops show: it calls code that is not known."""
    for module in called_modules(region):
        if type(module).__module__.partition(".")[0] not in _KNOWN:
            return f"a module of the model is called: {type(module).__name__}"
        for node in module.graph.nodes if isinstance(module, Region) else ():
            if node.op == "call_function" and not _is_known(node.target):
                return f"{node.name} calls a function of the model"
            if node.op == "get_attr" and not isinstance(get_attr(module, str(node.target)), Tensor):
                return f"{node.name} reads an attribute"
    return ""


def _is_known(function: Any) -> bool:
    if isinstance(function, torch._ops.OpOverload):
        return True  # one op, whoever wrote it
    if isinstance(function, type) and function in pytree.SUPPORTED_NODES:
        return True  # a container
    module = getattr(function, "__module__", None) or _get_qualified_name(function)
    return str(module).partition(".")[0] in _KNOWN


def _unknown_input(region: Region, tensors: Sequence[Tensor]) -> str:
    own = {id(tensor) for tensor in (*region.parameters(), *region.buffers())}
    return "it is given a tensor of its own" if any(id(tensor) in own for tensor in tensors) else ""


def _unknown_output(leaves: list[Any]) -> str:
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                return "the result has a gradient"
        elif not (leaf is None or isinstance(leaf, (bool, int, float, str))):
            return f"it returns a {type(leaf).__name__}"
    return ""


def _same(a: Tensor, b: Tensor) -> bool:
    alike = (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)
    return alike and bool(((a == b) | (a != a)).all())
