"""The user's code over the state of a region, for calls that its graph does not cover.

Capture makes stock modules of parameters that code reads itself (`self.weight`), and of modules of the user's that
compute the same; conversion stores integers in them. The code gets its parameters and modules back, in float.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fxquant.graph.region_parts import Origin


def as_written(view: nn.Module, origin: Origin) -> nn.Module:
    """Return a copy of a module of the user's class that has its modules and parameters where its code reads them."""
    if not origin.moved and not origin.classes:
        return view
    made = _shallow(view)
    copies: dict[str, nn.Module] = {"": made}
    for path, cls in origin.classes.items():
        _restore(made, path, cls, copies)
    for old, (new, transposed) in origin.moved.items():
        path, _, name = old.rpartition(".")
        holder, _, kept = new.rpartition(".")
        owner = _copied(made, path, copies)
        value = _float(view.get_submodule(holder), kept)
        if isinstance(value, Tensor):
            owner._modules.pop(name, None)
            owner.__dict__[name] = value.t() if transposed else value
    return made


def _restore(root: nn.Module, path: str, cls: type[nn.Module], copies: dict[str, nn.Module]) -> None:
    """Put a module of the user's class where a stock one stands, with its state and its plain attributes."""
    above, _, name = path.rpartition(".")
    stands = _copied(root, above, copies).get_submodule(name)
    in_float = getattr(type(stands), "in_float", None)
    stock: nn.Module = stands if in_float is None else in_float(stands)
    if not type(stock).__module__.startswith("torch.nn"):
        return  # a block that trains: it runs as the stock module does
    restored = cls.__new__(cls)
    restored.__dict__.update(_shallow(stock).__dict__)
    copies[path] = copies[above]._modules[name] = restored


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
