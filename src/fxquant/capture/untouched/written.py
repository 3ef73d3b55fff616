"""Parameters that a call changes itself: tables with `max_norm`, weights that code clips or averages in place.

A captured model shares its parameters with the user's, but not these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fxquant.graph.op_mode import Op, OpMode


class Written(OpMode):
    """While it lasts, keeps the value of each parameter of a tree that an op is about to write to."""

    def __init__(self, tree: nn.Module) -> None:
        super().__init__()
        self.tree = tree
        real = [p for p in tree.parameters() if not p.is_meta and p.layout is torch.strided]
        self.parameters = {p.untyped_storage().data_ptr(): p for p in real if p.untyped_storage().nbytes()}
        self.saved: dict[int, tuple[nn.Parameter, Tensor]] = {}

    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if op._schema.is_mutable:
            given = {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}
            for argument in op._schema.arguments:
                value = given.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                    self._save(value)
        return op(*args, **kwargs)

    def _save(self, value: Tensor) -> None:
        if value.is_meta or type(value) not in (Tensor, nn.Parameter):
            return
        parameter = self.parameters.get(value.untyped_storage().data_ptr())
        if parameter is not None and id(parameter) not in self.saved:
            self.saved[id(parameter)] = parameter, parameter.detach().clone()

    @torch.no_grad()
    def put_back(self) -> None:
        """Give what was written to its value of before."""
        for parameter, value in self.saved.values():
            parameter.copy_(value)

    def separate(self) -> None:
        """Put the values back, and give the tree parameters of its own in the place of those that were written to."""
        self.put_back()
        made = {key: nn.Parameter(value, p.requires_grad) for key, (p, value) in self.saved.items()}
        for module in self.tree.modules():
            for name, held in module._parameters.items():
                if held is not None and id(held) in made:
                    module._parameters[name] = made[id(held)]


@contextlib.contextmanager
def parameters_kept(model: nn.Module) -> Iterator[None]:
    """Undo, at the end, what calls of a model write to its parameters."""
    written = Written(model)
    try:
        with written:
            yield
    finally:
        written.put_back()
