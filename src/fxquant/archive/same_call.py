"""Calls that the language has another word for: they are stored as that, and compute the same.

torch.max(x, 1).values   ->  torch.max(x, 1)[0]     files read no attributes but those of tensors
x << 1                   ->  x.__lshift__(1)        a method of tensors, as `<<` also makes numbers of any length
x.type(torch.float32)    ->  x.to(torch.float32)    without a dtype, `type` gives a string
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxquant.graph.nodes import TensorInfo

_SHIFTS: dict[object, str] = {operator.lshift: "__lshift__", operator.rshift: "__rshift__"}


def same_call(
    node: fx.Node, op: str, target: object, args: tuple[object, ...]
) -> tuple[str, object, tuple[object, ...]]:
    """Return (op, target, arguments) of what a node is stored as."""
    if node.op == "call_method" and node.target == "type" and (node.args[1:] or node.kwargs):
        return op, "to", args
    source = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(source, fx.Node) or len(node.args) != 2:
        return op, target, args
    if node.target in _SHIFTS and isinstance(source.meta.get("tensor"), TensorInfo):
        return "call_method", _SHIFTS[node.target], args
    fields = _fields(source)
    if node.target is getattr and node.args[1] in fields:
        return op, "operator.getitem", (args[0], fields.index(str(node.args[1])))
    return op, target, args


def _fields(source: fx.Node) -> tuple[str, ...]:
    """Return the names of what a function of torch returns several of."""
    called = source.target if source.op == "call_method" else getattr(source.target, "__name__", "")
    if source.op == "call_function" and str(getattr(source.target, "__module__", None) or "torch")[:5] != "torch":
        return ()
    kind = getattr(torch.return_types, str(called), None)
    fields: tuple[str, ...] = getattr(kind, "__match_args__", ())
    return fields
