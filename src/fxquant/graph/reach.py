"""Which Python code a model's `forward` may run: the functions, classes and globals that it names.

A class is entered at `forward` and at the methods that Python calls by itself; another method once code names it, as an
attribute or as a global. So what is found is what a call can write to, not all of a library.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

# pytest writes itself into the asserts of test files, and all of its session hangs on that
_FOREIGN = frozenset(
    (*sys.stdlib_module_names, "builtins", "torch", "numpy", "sympy", "mpmath", "fxquant", "pytest", "_pytest")
)
# classes whose values hold nothing that could be written to
ATOMS = frozenset(
    (
        *(int, float, bool, complex, str, bytes, type(None), type(Ellipsis), range, slice),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch._ops.OpOverload),
    )
)
_STORE = dis.opmap["STORE_GLOBAL"]
_MISSING = object()


def is_foreign(module_name: object) -> bool:
    """Tell whether code is Python's, torch's or ours, so that it keeps no state of the user's."""
    return not isinstance(module_name, str) or module_name.partition(".")[0] in _FOREIGN


@functools.lru_cache(maxsize=8192)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(all names in a code object, those that it reads as globals, those that it stores), nested functions included.

    An attribute `self.model` is a name of the code, and says nothing about a global of that name.
    """
    names, read, stored = set(code.co_names), set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(str(instruction.argval))
        elif instruction.opcode == _STORE:
            stored.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for found, inner in zip((names, read, stored), _names(constant), strict=True):
                found |= inner
    return frozenset(names), frozenset(read), frozenset(stored)


def is_missing(value: object) -> bool:
    """Tell whether a binding was not there."""
    return value is _MISSING


class Reach:
    """Follows code. `visit` is given every value that is found on the way; `bind` every (holder, name, value) that
    code may bind anew."""

    def __init__(self, visit: Callable[[object], None], bind: Callable[[object, str, object], None]) -> None:
        self.visit, self.bind = visit, bind
        self._named: set[str] = {"forward"}
        self._waiting: dict[str, list[Any]] = {}  # members of classes and modules that no code has named yet
        self._seen: set[int] = set()

    def enter_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if is_foreign(base.__module__) or not self._is_new(base):
                continue
            for name, member in list(vars(base).items()):
                dunder = name.startswith("__") and name.endswith("__")
                if not dunder:
                    self.bind(base, name, member)
                if dunder or not _is_code(member):
                    self._member(member)
                else:
                    self._await(name, member)

    def enter_module(self, module: types.ModuleType) -> None:
        if is_foreign(module.__name__) or not self._is_new(module):
            return
        for name, member in list(vars(module).items()):
            if not name.startswith("__"):
                self._await(name, member)

    def enter_function(self, function: types.FunctionType) -> None:
        if is_foreign(function.__module__) or not self._is_new(function):
            return
        names, read, stored = _names(function.__code__)
        known = function.__globals__
        for name in stored:
            self.bind(known, name, known.get(name, _MISSING))
        for name in read:
            if name in known:
                self.visit(known[name])
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(value)
        for name in names - self._named:
            self._named.add(name)
            for member in self._waiting.pop(name, ()):
                self._member(member)

    def _await(self, name: str, member: object) -> None:
        if name in self._named:
            self._member(member)
        else:
            self._waiting.setdefault(name, []).append(member)

    def _member(self, member: object) -> None:
        for value in _unwrap(member):
            self.visit(value)

    def _is_new(self, thing: object) -> bool:
        new = id(thing) not in self._seen
        self._seen.add(id(thing))
        return new


def _is_code(member: object) -> bool:
    return isinstance(
        member, (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
    ) or hasattr(type(member), "cache_clear")


def _unwrap(member: object) -> Iterator[object]:
    if isinstance(member, property):
        yield from (each for each in (member.fget, member.fset) if each is not None)
    elif isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, functools.cached_property):
        yield member.func
    else:
        yield member
