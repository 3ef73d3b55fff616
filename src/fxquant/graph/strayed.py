"""What code that runs beside a graph leaves on the module, so that the graph does not hold for the next call.

A graph was traced with plain attributes as they were: `if self.shape != x.shape: self.anchors, self.shape = ...` is not
in it. A call that the graph does not cover runs that code, which may write to them. Until they are as they were again,
calls run the code. Of tensors, the sizes and the dtype count: their values are read by the graph in each call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from torch import Tensor, nn

Kept: TypeAlias = dict[tuple[str, str], object]  # (path of a module, name of an attribute) -> what it is like

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MISSING = ("missing",)


def kept_by(root: nn.Module, own: Collection[str]) -> Kept:
    """Return what the attributes of a module are like, and of those inside; `own` are those that are not the user's."""
    found: Kept = {}
    for path, module in root.named_modules():
        if module is not root and type(module).__module__.startswith("fxquant."):
            continue  # kernels and stored weights keep what is theirs
        for name, value in (*module.__dict__.items(), *module._buffers.items()):
            if name not in own:
                found[path, name] = _like(value)
    return found


def strayed(before: Kept, after: Kept) -> Kept:
    """Return what attributes were like that are like something else now."""
    return {name: before.get(name, _MISSING) for name in unlike({**dict.fromkeys(after, _MISSING), **before}, after)}


def unlike(wanted: Kept, now: Kept) -> list[tuple[str, str]]:
    """Return which of the attributes in `wanted` are like something else now."""
    return [name for name, like in wanted.items() if now.get(name, _MISSING) != like]


def _like(value: object) -> object:
    if isinstance(value, Tensor):
        return "tensor", value.dtype, tuple(value.shape)
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(_like, value))
    if isinstance(value, dict):
        return type(value).__name__, tuple((repr(key), _like(item)) for key, item in value.items())
    return "object", id(value)
