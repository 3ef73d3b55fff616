"""The user's code over the state of a region, for calls that its graph does not cover.

Capture makes stock modules of parameters that code reads itself (`self.weight`), and conversion stores integers in
them. The code gets the parameters back, in float.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn


def as_written(view: nn.Module, moved: Mapping[str, tuple[str, bool]]) -> nn.Module:
    """Return a copy of a module of the user's class that has its moved parameters where its code reads them."""
    if not moved:
        return view
    made = _shallow(view)
    copies: dict[str, nn.Module] = {"": made}
    for old, (new, transposed) in moved.items():
        path, _, name = old.rpartition(".")
        holder, _, kept = new.rpartition(".")
        owner = _copied(made, path, copies)
        value = _float(view.get_submodule(holder), kept)
        owner._modules.pop(name, None)
        owner.__dict__[name] = value.t() if transposed and isinstance(value, Tensor) else value
    return made


def _copied(root: nn.Module, path: str, copies: dict[str, nn.Module]) -> nn.Module:
    if path not in copies:
        above, _, name = path.rpartition(".")
        owner = _copied(root, above, copies)
        copies[path] = _shallow(owner.get_submodule(name))
        owner._modules[name] = copies[path]
    return copies[path]


def _shallow(module: nn.Module) -> nn.Module:
    made = copy.copy(module)
    tables = ("_parameters", "_modules")
    made.__dict__.update({table: dict(module.__dict__[table]) for table in tables})
    return made


def _float(holder: nn.Module, name: str) -> object:
    read = getattr(type(holder), "dequantized", None)
    return getattr(holder, name) if read is None else read(holder, name)
