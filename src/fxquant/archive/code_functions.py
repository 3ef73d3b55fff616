"""What a graph may call of the user's own code: wrapped functions and methods, and containers that forward returns.

Containers are dataclasses, named tuples and classes derived from dict. All are looked for in the attributes and classes
of the modules, in the Python files of these, and in what these import from, as loaded: nothing is imported.
A file names them; the float model that is given to `load` has them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx, nn

from fxquant.graph.notes import WRAPPED
from fxquant.graph.region import user_class

_NOT_THE_USERS = frozenset(("torch", "fxquant", "numpy", *sys.stdlib_module_names)) - {"__main__"}


def code_functions(model: nn.Module) -> dict[str, Callable[..., object]]:
    """By qualified name; a name that stands for two of them is left out."""
    found: dict[str, Callable[..., Any]] = {}
    double: set[str] = set()
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, type)]
    for function in _callables({user_class(module) for module in model.modules()}, held):
        name = f"{function.__module__}.{function.__qualname__}"
        if found.setdefault(name, function) is not function:
            double.add(name)
    return {name: function for name, function in found.items() if name not in double}


def _callables(classes: set[type[nn.Module]], held: list[type]) -> Iterator[Callable[..., object]]:
    bases = {base for cls in classes for base in cls.__mro__ if base is not object}
    own = [base for base in bases if base.__module__.partition(".")[0] not in ("torch", "fxquant")]
    members = [getattr(member, "__func__", member) for base in own for member in vars(base).values()]
    members += [value for member in members for value in _closed_over(member)]
    files = {base.__module__ for base in own} & set(sys.modules)
    members += [value for name in files for value in vars(sys.modules[name]).values()]
    for name in _reached(files) - files:
        found = vars(sys.modules[name]).values()
        members += [value for value in found if hasattr(value, WRAPPED) or _is_container(value)]
    for name in _reached(files):
        yield from _wrapped_by_name(vars(sys.modules[name]))
    for value in (*members, *held):
        if isinstance(value, type):
            callable_by_graph = _is_container(value)
        else:
            callable_by_graph = hasattr(value, "__qualname__") and (hasattr(value, WRAPPED) or _is_fx_wrapped(value))
        if callable_by_graph:
            yield value


def _is_container(value: object) -> bool:
    """Tell whether forward may return instances of a class of the user's, with tensors inside."""
    if not isinstance(value, type):
        return False
    theirs = value.__module__.partition(".")[0] not in _NOT_THE_USERS
    return dataclasses.is_dataclass(value) or (theirs and issubclass(value, (tuple, dict)))


def _closed_over(member: object) -> Iterator[object]:
    """Yield what a function has from the function around it, such as classes that stand there."""
    for cell in getattr(member, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a name that has no value yet
            yield cell.cell_contents


def _reached(files: set[str]) -> set[str]:
    """Return the loaded modules whose functions these files can call: those that they import from, and so on."""
    found: set[str] = set()
    todo = list(files)
    while todo:
        name = todo.pop()
        if name in found or name not in sys.modules or name.partition(".")[0] in _NOT_THE_USERS:
            continue
        found.add(name)
        for value in list(vars(sys.modules[name]).values()):
            if isinstance(value, types.ModuleType):
                todo.append(value.__name__)
            elif isinstance(value, (types.FunctionType, type)):
                todo.append(value.__module__)
    return found


def _wrapped_by_name(names: dict[str, Callable[..., object]]) -> Iterator[Callable[..., object]]:
    """Functions that `torch.fx.wrap("name")` in a file is about, which may be imported from another."""
    for name, value in list(names.items()):
        if (id(names), name) in fx._symbolic_trace._wrapped_fns_to_patch and hasattr(value, "__qualname__"):
            yield value


def _is_fx_wrapped(value: object) -> bool:
    """Tell whether torch.fx.wrap was called on a function."""
    key = (id(getattr(value, "__globals__", None)), getattr(value, "__name__", ""))
    return key in fx._symbolic_trace._wrapped_fns_to_patch
