"""Code of a graph module that is made when somebody asks for it: passes change a graph far more often."""

from __future__ import annotations

import weakref
from typing import Any

from torch import fx, nn

CODE = ("_code", "_lineno_map", "_prologue_start")  # what GraphModule.recompile keeps beside `forward`


def outdate(module: fx.GraphModule) -> None:
    """Say that the graph was changed: code is made of it at the first call, which may be after further changes."""
    for key in CODE:
        module.__dict__.pop(key, None)
    type(module).forward = _Outdated(module)  # type: ignore[assignment]  # of a class that this instance alone has


def is_outdated(module: fx.GraphModule) -> bool:
    """Tell whether the code of a graph is still to be made."""
    return isinstance(type(module).__dict__.get("forward"), _Outdated)


def make_code(model: nn.Module) -> None:
    """Make the code that is not made yet: compilers look for it in the class, where Python would ask for it."""
    for module in model.modules():
        if isinstance(module, fx.GraphModule) and is_outdated(module):
            module.recompile()


class _Outdated:
    """Stands for the `forward` of a graph module until somebody asks for it."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = weakref.ref(module)  # a class is part of a cycle, and would keep it

    def __get__(self, instance: fx.GraphModule | None, owner: type) -> Any:
        module = self.module()
        assert module is not None
        module.recompile()
        return type(module).__dict__["forward"].__get__(instance, owner)
