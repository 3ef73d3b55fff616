"""Copies of the plain objects that modules hold, so that what a copied model writes to is its own.

Lists, dicts, sets and objects of Python classes are copied, and whatever is shared among them stays shared. What cannot
be copied safely, or is not written to by calls, stays one object: functions and classes, open files, locks, loggers,
arrays, objects of compiled classes, and those that clean up after themselves.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import random
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from fxquant.graph import torch_compat
from fxquant.graph.reach import ATOMS, is_foreign

_HOOKS = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
_TABLES = frozenset(nn.Module().__dict__)  # what torch keeps on modules
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class comes from a class statement
_MISSING = object()


def own_objects(tree: nn.Module, memo: dict[int, object], *, buffers: bool) -> None:
    """Replace the plain attributes of a tree of copied modules by copies; with `buffers`, these too.

    `memo` leads from the id of an original (module, parameter) to its copy.
    """
    copier = _Copier(memo)
    for module in tree.modules():
        if torch_compat.is_scripted(module):
            continue
        for name, value in module.__dict__.items():
            if name not in _TABLES:
                module.__dict__[name] = copier.copy(value)
        if buffers:
            for name, buffer in module._buffers.items():
                module._buffers[name] = copier.copy(buffer)


def copy_model(model: nn.Module) -> nn.Module:
    """`copy.deepcopy`, but for plain objects in the model that are to stay one object, or cannot be copied."""
    copier = _Copier({})
    for module in model.modules():
        for name, value in module.__dict__.items():
            if name not in _TABLES:
                copier.copy(value)
        for buffer in module._buffers.values():
            copier.copy(buffer)
    return copy.deepcopy(model, copier.fixed)


def slots_of(cls: type) -> list[types.MemberDescriptorType]:
    """Return the slots of a class and of those that it derives from."""
    having = [base for base in cls.__mro__ if "__slots__" in base.__dict__]  # few have
    found = (vars(base).get(name) for base in having for name in _slot_names(base))
    return [slot for slot in found if isinstance(slot, types.MemberDescriptorType)]


def _slot_names(base: type) -> Iterator[str]:
    names = vars(base).get("__slots__", ())
    yield from (names,) if isinstance(names, str) else names


def read_slots(value: object) -> dict[types.MemberDescriptorType, object]:
    """Return what is in the slots of an object; those that are not set are left out."""
    state: dict[types.MemberDescriptorType, object] = {}
    for slot in slots_of(type(value)):
        with contextlib.suppress(AttributeError):
            state[slot] = slot.__get__(value)
    return state


class _Copier:
    def __init__(self, memo: dict[int, object]) -> None:
        self.memo = memo
        self.fixed: dict[int, Any] = {}  # what `deepcopy` would do otherwise, or not at all
        self.alive: list[Any] = []  # an id is an object's own as long as that lives

    def copy(self, value: object) -> Any:
        if type(value) in ATOMS:
            return value
        found = self.memo.get(id(value), _MISSING)
        if found is not _MISSING:
            return found
        made = self._copy(value, type(value))
        if made is not value:
            self.alive.append(value)
            self.memo[id(value)] = made
        return made

    def _copy(self, value: Any, cls: type) -> Any:
        if isinstance(value, (type, types.BuiltinFunctionType, types.ModuleType, nn.Module)):
            return value
        if isinstance(value, types.FunctionType):
            return self._copy_function(value) if value.__closure__ and not is_foreign(value.__module__) else value
        if isinstance(value, Tensor):
            return self._copy_tensor(value)
        if cls in (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque):
            return self._copy_container(value)
        if isinstance(value, (tuple, set, frozenset)) and cls in (tuple, set, frozenset):
            return self._copy_items(value, cls)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self.copy(item) for item in value]
            return value if _same(items, value) else cls._make(items)  # type: ignore[attr-defined]
        if isinstance(value, types.MethodType):
            owner = self.copy(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial) and cls is functools.partial:
            args, named = self.copy(value.args), self.copy(value.keywords)
            return functools.partial(self.copy(value.func), *args, **named)
        if isinstance(value, torch.Generator):
            made = torch.Generator(value.device).set_state(value.get_state())
            self.fixed[id(value)] = made
            return made
        if self._is_plain(cls):
            return self._copy_object(value, cls)
        return self._share(value, cls)

    def _copy_tensor(self, value: Tensor) -> Tensor:
        if not value.is_leaf:  # kept of a call with gradients: the copy has the values, not the history
            self.alive.append(value)
            return cast("Tensor", self.fixed.setdefault(id(value), value.detach().clone()))
        return value.detach().clone().requires_grad_(value.requires_grad) if type(value) is Tensor else value

    def _copy_container(self, value: dict[object, object] | list[object] | collections.deque[object]) -> object:
        made = copy.copy(value)
        self.alive.append(value)
        self.memo[id(value)] = made
        made.clear()
        if isinstance(value, dict) and isinstance(made, dict):
            for key, item in value.items():
                made[self.copy(key)] = self.copy(item)
        elif not isinstance(made, dict):
            made.extend(self.copy(item) for item in value)
        return made

    def _copy_items(self, value: Iterable[object], cls: Callable[[list[object]], object]) -> object:
        items = [self.copy(item) for item in value]
        return value if cls is not set and _same(items, value) else cls(items)

    def _copy_object(self, value: object, cls: type) -> object:
        table: dict[str, Any] = getattr(value, "__dict__", {})
        slots = read_slots(value)
        if not table and not slots:  # a sentinel, known by its identity
            return value
        made = object.__new__(cls) if cls is not types.SimpleNamespace else types.SimpleNamespace()
        self.alive.append(value)
        self.memo[id(value)] = made
        if table:
            made.__dict__.update({name: self.copy(item) for name, item in table.items()})
        for slot, item in slots.items():
            slot.__set__(made, self.copy(item))
        return made

    def _copy_cell(self, cell: types.CellType, item: object) -> types.CellType:
        return cast("types.CellType", self.memo.setdefault(id(cell), types.CellType(item)))

    def _copy_function(self, value: types.FunctionType) -> types.FunctionType:
        """Return a function whose closure is its own, if there is something in it to write to."""
        cells = list(value.__closure__ or ())
        try:
            held = [cell.cell_contents for cell in cells]
        except ValueError:  # a name that has no value yet
            return value
        self.memo[id(value)] = value  # it may hold itself
        copies = [self.copy(item) for item in held]
        del self.memo[id(value)]
        if _same(copies, held):
            return value
        self.alive.extend(cells)
        pairs = zip(cells, copies, strict=True)
        closure = tuple(self._copy_cell(cell, item) for cell, item in pairs)
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        made.__kwdefaults__ = value.__kwdefaults__
        made.__qualname__, made.__module__ = value.__qualname__, value.__module__
        made.__dict__.update(value.__dict__)
        return made

    def _is_plain(self, cls: type) -> bool:
        """Tell whether `cls.__new__` and the attributes make up a copy.

        They do for an object of Python code that says nothing else.
        """
        if cls is types.SimpleNamespace:
            return True
        if is_foreign(cls.__module__) or not (cls.__dictoffset__ or slots_of(cls)):
            return False
        special = {name for base in cls.__mro__ if base is not object for name in vars(base)}
        return special.isdisjoint((*_HOOKS, "__new__", "__del__"))

    def _share(self, value: object, cls: type) -> object:
        """Return the object itself; or what its class makes of a copy, if it has a say in that."""
        python = (not is_foreign(cls.__module__) and cls.__flags__ & _HEAP) or cls is random.Random
        if python and not hasattr(cls, "__del__"):
            try:
                made = copy.deepcopy(value, self.memo)
            except Exception:  # it holds a file, a lock, ...
                made = value
            if made is not value:
                return made
        if cls.__module__.partition(".")[0] not in ("torch", "fxquant"):  # these know how they are copied
            self.fixed[id(value)] = value
        return value


def _same(items: Iterable[object], value: Iterable[object]) -> bool:
    return all(a is b for a, b in zip(items, value, strict=True))
