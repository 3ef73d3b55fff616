"""Regions of containers: `len(model)`, `model[0]` and loops over a captured nn.Sequential read as on the float model.

Python looks for such methods on the class of an object. That of a region is the region's alone, so it is given those
that the user's class has. What we put among the children, such as quantizers, is not seen by them. Changes are refused:
a graph was captured, and calls what it called then.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from fxquant.errors import StageError

_READS = ("__len__", "__getitem__", "__iter__", "__contains__", "__reversed__")
_WRITES = (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
    *("append", "extend", "insert", "pop", "clear", "update"),
)
_OF_GRAPHS = ("forward", "_wrapped_call")  # what fx gives the class of each graph module, and a region has its own of
_STOCK = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

Own = Callable[[Any, str], bool]


def lend_methods(cls: type, user_class: type[nn.Module], own: Own) -> None:
    """Give the class of one region the user's methods and plain attributes, and those of a container, if it is one.

    `own` tells our children. Code that asks for `type(model)._sample` finds it there as on the float model.
    """
    # looked at, not asked for: a region makes its `forward` then
    ours = {*_OF_GRAPHS, *(name for base in cls.__mro__ for name in base.__dict__)}
    for name, attribute in _attributes(user_class).items():
        if name not in ours:
            setattr(cls, name, attribute)
    for name in _READS:
        if hasattr(user_class, name):
            setattr(cls, name, _read(name, user_class, own))
    for name in _WRITES:
        if any(issubclass(user_class, stock) and hasattr(stock, name) for stock in _STOCK):
            setattr(cls, name, _refuse(name))


def _attributes(user_class: type[nn.Module]) -> dict[str, object]:
    """Return what the user's classes have besides those of torch; properties read an object, and are found there."""
    classes = [cls for cls in reversed(user_class.__mro__) if cls not in nn.Module.__mro__]
    found = {name: attribute for cls in classes for name, attribute in cls.__dict__.items()}
    methods = (types.FunctionType, staticmethod, classmethod)
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("__") and (isinstance(value, methods) or not hasattr(value, "__get__"))
    }


def _read(name: str, user_class: type[nn.Module], own: Own) -> Callable[..., object]:
    def read(self: nn.Module, *args: object) -> object:
        view = user_class.__new__(user_class)
        children = {at: child for at, child in self._modules.items() if not own(self, at)}
        object.__setattr__(view, "__dict__", {**self.__dict__, "_modules": children})
        return getattr(view, name)(*args)

    return read


def _refuse(name: str) -> Callable[..., object]:
    def refuse(self: nn.Module, *args: object, **kwargs: object) -> object:
        raise StageError(
            f"{name} would not change what a captured model computes: its graph calls the modules that were there. "
            "Change the float model and quantize it again, or put this one into a new nn.Sequential."
        )

    return refuse
