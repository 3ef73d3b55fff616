"""The Python state that a call of a model may write to, as it is now, and back again.

Followed from the modules: plain attributes, what is in lists, dicts, sets and objects of the user's classes, tensors
that are no parameters, closures, class attributes, and the globals that the code names (`graph.reach`). A result that
`lru_cache` keeps cannot be taken back, so a cache that took in something is cleared. Parameters of fully_shard are
other tensors after a call than before, and stay so.

Most of that hangs on code, which all runs of one model share: a `Ground` follows it once, and the snapshots that are
taken on it follow attributes only.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fxquant.capture.untouched.holders import (
    ARRAY,
    CACHE,
    CELL,
    CONTAINERS,
    GENERATORS,
    KEPT,
    LIST,
    MODULE,
    REGION,
    SET,
    SLOTS,
    TABLE,
    TENSOR,
    Kind,
)
from fxquant.capture.untouched.other_random import put_back
from fxquant.graph import torch_compat
from fxquant.graph.own import slots_of
from fxquant.graph.reach import ATOMS, Reach, is_foreign, is_missing
from fxquant.graph.region import OWN_KEYS, Region, user_class
from fxquant.graph.remembered import ours

_INTERNAL = frozenset(nn.Module().__dict__)  # tables that torch keeps on modules
_NO_SUBMODULE = (("", ""),)
_CODE = (types.FunctionType, type, types.ModuleType)
# what most values are, by their very class: what is asked of others would take longer
_PLAIN: dict[type, Kind] = {dict: TABLE, collections.defaultdict: TABLE, list: LIST, set: SET}
_HOLDERS = (types.SimpleNamespace, collections.UserDict, collections.UserList, weakref.WeakKeyDictionary)


Record = tuple[Any, Any, Kind, int]  # (what, its state, how to treat it, root)
Binding = tuple[Any, str, Any]  # (table of globals, class or other holder, name, value)


class Snapshot:
    """What is reachable from a model, as it was when this was made. What fxquant put into it is not: see `ours`.

    `ground` knows what the code of the model reaches, which is as it was when the ground was taken.
    """

    def __init__(self, model: nn.Module, *, ground: Ground | None = None) -> None:
        self._ground = ground
        self._seen: dict[int, Any] = {}
        self._records: list[Record] = []
        self._bindings: list[Binding] = []
        self._labels: dict[int, list[tuple[str, str]]] = {}  # root -> the module attributes that lead there
        self._empty: list[Any] = []  # tables of modules that had nothing in them
        self._classes: set[type] = set()
        self._root = 0
        self._roots: dict[int, int] = {}
        self._pending: list[tuple[Any, int]] = []
        self._reach = Reach(self._visit, lambda holder, name, value: self._bindings.append((holder, name, value)))
        for module in ours(model):
            self._leave_out(module)
        for path, module in model.named_modules():
            self._enter_module(path, module)
        self._own = len(self._records)  # the first ones are the tables of the modules themselves
        self._drain()
        del self._reach  # it holds us, too: that would keep all the tables until the next garbage collection

    def restore(self) -> None:
        """Everything as it was."""
        for what, state, kind, _ in self._all_records():
            if not kind.same(what, state):
                kind.put(what, state)
        for table in self._empty:
            if table:
                table.clear()
        for holder, name, value in self._all_bindings():
            if isinstance(holder, dict):
                _rebind(holder, name, value)
            elif vars(holder).get(name) is not value:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(holder, name, value)

    def _all_records(self) -> Iterator[Record]:
        """Yield the records of this snapshot, and those of its ground that it does not have itself."""
        yield from self._records
        if self._ground is not None:
            yield from (record for record in self._ground.records if id(record[0]) not in self._seen)

    def _all_bindings(self) -> Iterator[Binding]:
        yield from self._bindings
        if self._ground is not None:
            yield from self._ground.bindings

    def restore_buffers(self) -> None:
        """Tensors as they were; what Python keeps stays."""
        tables = {id(what["_buffers"]) for what, _, kind, _ in self._all_records() if kind in (MODULE, REGION)}
        for what, state, kind, _ in self._all_records():
            if (kind is TENSOR or id(what) in tables) and not kind.same(what, state):
                kind.put(what, state)

    def changed(self) -> dict[str, list[str]]:
        """Return the attributes behind which something is not as it was, by module path; torch's own tables aside."""
        found: dict[str, list[str]] = {}
        for what, state, kind, root in self._all_records():
            if kind in (MODULE, REGION):
                names = [n for n in {**state, **kind.take(what)} if n != "training" and not n.startswith(KEPT)]
                changes = [n for n in names if what.get(n, self) is not state.get(n, self)]
                labels = [(path, n) for path, _ in self._labels.get(id(what), _NO_SUBMODULE) for n in changes]
            elif kind in (TENSOR, CACHE) or root not in self._labels or kind.same(what, state):
                continue
            else:
                labels = self._labels[root]
            for path, name in labels:
                if name not in found.setdefault(path, []):
                    found[path].append(name)
        return {path: names for path, names in found.items() if names}

    def changed_outside(self) -> bool:
        """Tell whether globals, closures or classes are not as they were: what no attribute of a module leads to."""
        if any(_is_rebound(*binding) for binding in self._all_bindings()):
            return True
        outside = (record for record in self._all_records() if record[3] not in self._labels)
        tables = (MODULE, REGION, CACHE)
        return any(kind not in tables and not kind.same(what, state) for what, state, kind, _ in outside)

    def _leave_out(self, module: nn.Module) -> None:
        """A module that is not put back, also where code reaches it."""
        self._seen[id(module.__dict__)] = self._seen[id(module)] = module
        for table in (module._parameters, module._buffers):
            self._seen.update((id(tensor), tensor) for tensor in table.values() if tensor is not None)
        self._enter_class(user_class(module))

    def _enter_module(self, path: str, module: nn.Module) -> None:
        table = module.__dict__
        if id(table) in self._seen or torch_compat.is_scripted(module):
            return
        self._seen[id(table)] = self._seen[id(module)] = module
        kind = REGION if isinstance(module, Region) else MODULE
        self._records.append((table, kind.take(table), kind, 0))
        self._labels[id(table)] = [(path, "")]
        for name, value in table.items():
            if type(value) in ATOMS or (type(value) is tuple and ATOMS.issuperset(map(type, value))):
                continue
            if kind is REGION and (name == "_modules" or (name in OWN_KEYS and name not in _INTERNAL)):
                continue
            if name in _INTERNAL:
                self._enter_table(name, value)
            elif not name.startswith("_fxquant"):
                root = id(value)
                self._labels.setdefault(self._roots.get(root, root), []).append((path, name))
                self._pending.append((value, root))
        self._enter_class(user_class(module))

    def _enter_class(self, cls: type) -> None:
        if cls not in self._classes:
            self._classes.add(cls)
            if not self._is_followed(cls):
                self._reach.enter_class(cls)

    def _is_followed(self, code: object) -> bool:
        return self._ground is not None and self._ground.knows(code)

    def _enter_table(self, name: str, table: object) -> None:
        """A table that torch keeps on a module. Most are empty, and the children are entered by themselves."""
        if not table:
            self._empty.append(table)
            return
        if name == "_parameters" and isinstance(table, dict) and any(map(_is_sharded, table.values())):
            return  # calls move them about, and those of before would not fit the next call
        kind = TABLE if isinstance(table, dict) else SET
        self._records.append((table, kind.take(table), kind, 0))
        if name not in ("_parameters", "_modules"):
            self._pending += [(value, 0) for value in (table.values() if isinstance(table, dict) else ())]

    def _visit(self, value: object) -> None:
        if type(value) not in ATOMS:
            self._pending.append((value, self._root))

    def _drain(self) -> None:
        while self._pending:
            value, root = self._pending.pop()
            if id(value) in self._seen or (isinstance(value, _CODE) and self._is_followed(value)):
                continue
            self._seen[id(value)] = value  # kept alive, so that its id stays its own
            self._root, self._roots[id(value)] = root, root
            self._enter(value, type(value))

    def _enter(self, value: object, cls: type) -> None:
        if (plain := _PLAIN.get(cls)) is not None:
            self._add(value, plain)
        elif cls is types.FunctionType:
            assert isinstance(value, types.FunctionType)
            self._enter_function(value)
        elif isinstance(value, nn.Module):  # one that is no submodule
            for module in value.modules():
                self._enter_module("", module)
        elif isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, (tuple, frozenset)):
            for item in value:
                self._visit(item)
        elif (kind := next((k for base, k in CONTAINERS if isinstance(value, base)), None)) is not None:
            self._add(value, kind)
        elif isinstance(value, types.FunctionType):
            self._enter_function(value)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__)
            self._visit(value.__func__)
        elif isinstance(value, functools.partial):
            for item in (value.func, *value.args, *value.keywords.values()):
                self._visit(item)
        elif isinstance(value, type):
            self._enter_class(value)
        elif isinstance(value, types.ModuleType):
            self._reach.enter_module(value)
        elif hasattr(cls, "cache_info") and hasattr(cls, "cache_clear"):
            self._add(value, CACHE)
            self._visit(getattr(value, "__wrapped__", None))
        elif cls is np.ndarray:
            self._add(value, ARRAY)
        elif (generator := next((k for base, k in GENERATORS if isinstance(value, base)), None)) is not None:
            self._add(value, generator)
        elif not is_foreign(cls.__module__) or isinstance(value, _HOLDERS):
            self._enter_object(value, cls)

    def _enter_object(self, value: object, cls: type) -> None:
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            self._visit(table)
        if slots_of(cls):
            self._add(value, SLOTS)
        self._enter_class(cls)

    def _enter_function(self, function: types.FunctionType) -> None:
        if is_foreign(function.__module__):
            return
        self._visit(function.__dict__)
        for cell in function.__closure__ or ():
            self._add(cell, CELL)
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self._visit(wrapped)
        self._reach.enter_function(function)

    def _add_tensor(self, value: Tensor) -> None:
        dense = value.layout is torch.strided and not value.is_quantized and not value.is_meta
        if type(value) is Tensor and dense:
            self._add(value, TENSOR)

    def _add(self, value: object, kind: Kind) -> None:
        state = kind.take(value)
        self._records.append((value, state, kind, self._root))
        for item in kind.items(state):
            self._visit(item)


class Ground:
    """What the code of a model and its parts reaches, followed once; for snapshots while nothing else changes it.

    The tables of the model's own modules are not part of it: each snapshot has those of its own tree.
    """

    def __init__(self, model: nn.Module) -> None:
        self.snapshot = Snapshot(model)
        self.records = self.snapshot._records[self.snapshot._own :]
        self.bindings = self.snapshot._bindings

    def knows(self, code: object) -> bool:
        """Tell whether a function, class or module was followed."""
        return id(code) in self.snapshot._seen or code in self.snapshot._classes


def _is_sharded(parameter: Tensor | None) -> bool:
    """Tell whether a parameter is torch's to keep: one of fully_shard."""
    return parameter is not None and type(parameter.data) is not Tensor


def _is_rebound(holder: object, name: str, value: object) -> bool:
    if isinstance(holder, dict):
        return name in holder if is_missing(value) else holder.get(name) is not value
    return vars(holder).get(name) is not value


def _rebind(table: dict[str, object], name: str, value: object) -> None:
    if is_missing(value):
        table.pop(name, None)
    elif table.get(name) is not value:
        table[name] = value


@contextlib.contextmanager
def left_as_it_was(model: nn.Module, *others: nn.Module) -> Iterator[None]:
    """Whatever is done to what a model reaches, by its own code too, is undone at the end.

    `others` are further forms of the model, as the quantized one: they run its code, which is followed once.
    """
    ground = Ground(model)
    taken = [ground.snapshot, *(Snapshot(other, ground=ground) for other in others)]
    try:
        with put_back():
            yield
    finally:
        for before in taken:
            before.restore()
