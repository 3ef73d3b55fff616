"""Dotted paths into a module tree, and what ops are called by them: `layer1.0.conv1`, `layer1.0:add`, `add_1`."""

from __future__ import annotations

import re
from typing import Any, cast

from torch import nn


def join_path(*parts: str) -> str:
    """Dotted paths put together; empty ones fall away."""
    return ".".join(part for part in parts if part)


def is_within(path: str, root: str) -> bool:
    """Tell whether a path is `root` or below it; all are below the empty one."""
    return not root or path == root or path.startswith(f"{root}.")


def class_name(cls: type) -> str:
    """`package.module.Class`, of the stock class where `cls` stands for one (see fxquant.modules)."""
    cls = cls.__dict__.get("stands_for", cls)
    return f"{cls.__module__}.{cls.__qualname__}"


def set_submodule(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a path, in place of what is there; missing parents are made."""
    parent_path, _, name = path.rpartition(".")
    parent = root
    for step in parent_path.split(".") if parent_path else ():
        if step not in parent._modules:
            parent.add_module(step, nn.Module())
        parent = cast(nn.Module, parent._modules[step])
    if name in parent._parameters or name in parent._buffers:
        delattr(parent, name)
    parent._modules[name] = module


def find_module(root: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path, by the tables of children alone; None if there is none.

    `get_submodule` reads attributes, and a region that stands for a parameter reads as a tensor.
    """
    module: nn.Module | None = root
    for step in path.split(".") if path else ():
        module = None if module is None or step not in module._modules else module._modules[step]
    return module


def get_attr(root: nn.Module, path: str) -> Any:
    """Return the parameter, buffer or plain attribute at a dotted path; a tensor as it is stored."""
    value: Any = root
    *above, name = path.split(".")
    for step in above:
        value = getattr(value, step)
    if isinstance(value, nn.Module) and value._buffers.get(name) is not None:
        return value._buffers[name]
    return getattr(value, name)


def free_path(root: nn.Module, path: str) -> str:
    """`path`, or `path_1`, `path_2`, ...: the first at which the root holds nothing."""

    def taken(candidate: str) -> bool:
        try:
            get_attr(root, candidate)
        except AttributeError:
            return False
        return True

    candidate, count = path, 0
    while taken(candidate):
        count += 1
        candidate = f"{path}_{count}"
    return candidate


def name_place(region: str, path: str, node: str, is_weighted: bool) -> str:
    """Return what an op is called in tables, and by rules that name single ops: the path of its module.

    With the name of the node, for one that is not a module by itself.
    """
    by_itself = path and (_letters(node) == _letters(path[len(region) :]) or (path == region and is_weighted))
    return path if by_itself else f"{path}:{node}".lstrip(":")


def _letters(name: str) -> str:
    """Return the letters and digits of a name, all that torch.fx keeps of a path when it names a node after it."""
    return re.sub(r"[\W_]+", "", name).lower()
