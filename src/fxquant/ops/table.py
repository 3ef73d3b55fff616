"""The one table of ops: every spelling of an op leads to one kind with one role.

An op that is not in the table is FLOAT and is never observed. The rows are in `rows.py`, what a row says in `op.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

from fxquant.ops.op import Layout, Op, Role, activation_nodes, argument
from fxquant.ops.rows import compute, fixed, in_float, own_range, share

__all__ = ["OPS", "Layout", "Op", "OpTable", "Role", "activation_nodes", "argument"]


def _aten_twin(target: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> object:
    """Return the out-of-place overload (or packet) that takes the same arguments; names of overloads need not agree."""
    overload = target if isinstance(target, torch._ops.OpOverload) else None
    name = overload.overloadpacket.__name__ if overload is not None else target.__name__
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") and not name.startswith("__") else None
    if packet is None or overload is None:
        return packet
    wanted = [str(argument.type) for argument in overload._schema.arguments]
    for candidate in (getattr(packet, other) for other in packet.overloads()):
        if [str(argument.type) for argument in candidate._schema.arguments] == wanted:
            return candidate
    return None


class OpTable:
    """The rows with their lookup. Extend by `OpTable((*OPS.rows, Op(...)))`; a later row wins a spelling."""

    def __init__(self, rows: Iterable[Op]) -> None:
        self.rows = tuple(rows)
        self.by_kind: dict[str, Op] = {}
        self._by_target: dict[Any, Op] = {}
        self._by_aten: dict[str, Op] = {}
        self._in_place: dict[Any, Any] = {}
        self._attributes: dict[str, Callable[..., object]] = {}
        for row in self.rows:
            self.by_kind[row.kind] = row
            self._by_target.update(dict.fromkeys((*row.modules, *row.functions, *row.methods), row))
            self._by_aten.update(dict.fromkeys(row.aten, row))
            self._in_place.update(row.inplace or {})
            self._attributes.update(row.attributes or {})

    def of(self, spelling: object) -> Op | None:
        """Return the row of a module class, function, method name or ATen overload."""
        if isinstance(spelling, torch._ops.OpOverload):
            spelling = spelling.overloadpacket
        if isinstance(spelling, torch._ops.OpOverloadPacket):
            namespace, _, name = spelling._qualified_op_name.partition("::")
            return self._by_aten.get(name) if namespace == "aten" else None
        if isinstance(spelling, type) and issubclass(spelling, nn.Module):
            return next((self._by_target[cls] for cls in spelling.__mro__ if cls in self._by_target), None)
        try:
            return self._by_target.get(spelling)
        except TypeError:  # an unhashable callable is no op of ours
            return None

    def of_node(self, node: fx.Node, root: nn.Module) -> Op | None:
        """Return the row of a graph node; a module with an `op_class` stands for an op of that class.

        One whose `forward` is the user's, by a class derived from torch's or put on the instance, stands for none.
        """
        if node.op == "call_module":
            module = root.get_submodule(str(node.target))
            stands_for = module.__dict__.get("op_class", type(module))
            return self.of(stands_for) if _is_known_forward(module, stands_for) else None
        if node.op in ("call_function", "call_method"):
            return self.of(node.target)
        return None

    def out_of_place(self, target: object) -> object:
        """Return the twin of an in-place function, method or ATen overload; None if `target` is not in-place."""
        if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return _aten_twin(target)
        return self._in_place.get(target)

    def of_attribute(self, name: object) -> Callable[..., object] | None:
        """Return the function that an attribute of a tensor is, such as `x.T`; None for plain attributes."""
        return self._attributes.get(name) if isinstance(name, str) else None


def _is_known_forward(module: nn.Module, cls: type[nn.Module]) -> bool:
    forward = getattr(cls, "forward", None)  # which the class of TorchScript's modules has for instances alone
    package = str(getattr(forward, "__module__", "")).partition(".")[0]
    return "forward" not in module.__dict__ and package in ("torch", "fxquant")


OPS = OpTable((*compute(), *own_range(), *fixed(), *share(), *in_float()))
