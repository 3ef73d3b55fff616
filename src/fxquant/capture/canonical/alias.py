"""Which nodes may share memory: views, slices and pass-through ops, told from ATen's own schemas.

Two nodes may share memory if both may be views of something that one node made. What is not known counts as a view.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from fxquant.graph.nodes import TensorInfo
from fxquant.ops.table import OpTable

# attributes and methods of a tensor that return plain values
_NUMBERS = frozenset(("shape", "dtype", "device", "ndim", "size", "dim", "numel", "stride"))
_COPIES = frozenset(("clone", "lift_fresh_copy"))  # identities, in memory of their own


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _schema_aliases(name: str) -> bool | None:
    """Tell whether an ATen op of this name returns a view; None if there is no such op."""
    packet = getattr(torch.ops.aten, name.rstrip("_"), None)
    if packet is None:
        return None
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return any(r.alias_info is not None and not r.alias_info.is_write for o in overloads for r in o._schema.returns)


def may_alias_input(node: fx.Node, root: nn.Module, ops: OpTable) -> bool:
    """Tell whether a node's result may share memory with one of its inputs."""
    op = ops.of_node(node, root)
    if node.op != "call_module" and _name(node) in _COPIES:
        return False
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        if op is not None:
            return op.is_view or op.may_be_input or bool(getattr(module, "inplace", False))
        return not type(module).__module__.startswith("torch.nn") or bool(getattr(module, "inplace", False))
    if op is not None and op.may_be_input:
        return True
    name = _name(node)
    if node.target in (operator.getitem, getattr):
        return True
    known = _schema_aliases(name.strip("_") if name.startswith("__") else name)
    if known is None:
        return op is None or op.is_view or op.may_be_input
    return known


def _is_plain(node: fx.Node, plain: set[fx.Node]) -> bool:
    if node.target is getattr and node.args[1] in _NUMBERS:
        return True
    if node.op == "call_method" and node.target in _NUMBERS:
        return True
    sources = node.all_input_nodes
    return bool(sources) and node.meta.get("tensor") is None and all(source in plain for source in sources)


def may_be_input(node: fx.Node, root: nn.Module, ops: OpTable) -> bool:
    """Tell whether a node's result may be one of its inputs, the same tensor and no view of it."""
    op = ops.of_node(node, root)
    flattens = "flatten" in str(getattr(node.target, "__name__", node.target)) or node.op == "call_module"
    fresh = op is not None and op.is_view and not flattens  # x.flatten() is x, if x is flat
    return not fresh and may_alias_input(node, root, ops)


def _items(node: fx.Node, root: nn.Module, ops: OpTable) -> list[tuple[fx.Node, int]]:
    """Return the items that code takes of what an op makes, such as the values of topk: each has memory of its own."""
    if node.op in ("placeholder", "get_attr", "output") or may_alias_input(node, root, ops):
        return []
    return [item for user in node.users if (item := _item(user)) is not None and item[0] is node]


def _item(node: fx.Node) -> tuple[fx.Node, int] | None:
    """Return which item of which container a node takes, if that is what it does."""
    if node.target is not operator.getitem or type(node.args[1]) is not int or not isinstance(node.args[0], fx.Node):
        return None
    container = node.args[0]
    return None if isinstance(container.meta.get("tensor"), TensorInfo) else (container, node.args[1])


class AliasSets:
    """The memory that each node may share; without `views`, the tensors that it may be.

    A node that may be a view of several (a container, a call of the user's code) shares memory with each of them, and
    does not make them share it with one another.
    """

    def __init__(
        self, graph: fx.Graph, root: nn.Module, ops: OpTable, mutates: dict[fx.Node, fx.Node], views: bool = True
    ) -> None:
        may_join = may_alias_input if views else may_be_input
        self._origins: dict[fx.Node, frozenset[Any]] = {}  # nodes that made the memory, names of the model's tensors
        plain: set[fx.Node] = set()  # sizes and other numbers, which share no memory
        for node in graph.nodes:
            if _is_plain(node, plain):
                plain.add(node)
                self._origins[node] = frozenset()
                continue
            sources: list[fx.Node] = []
            if node in mutates:
                sources = [mutates[node]]  # an in-place op returns what it mutates
            elif node.op not in ("placeholder", "get_attr", "output") and node.users and may_join(node, root, ops):
                sources = node.all_input_nodes
            made = frozenset((node.target if node.op == "get_attr" else node, *_items(node, root, ops)))
            joined = frozenset().union(*(self._origins[source] for source in sources)) or made
            item = _item(node)
            self._origins[node] = frozenset((item,)) if item in joined else joined

    def add(self, node: fx.Node, source: fx.Node) -> None:
        """A new node, which is a tensor that there is already."""
        self._origins[node] = self._origins[source]

    def of(self, node: fx.Node) -> list[fx.Node]:
        """Return all nodes that may share memory with a node, in graph order; not those that were made since."""
        mine, known = self._origins[node], self._origins
        return [n for n in node.graph.nodes if n is node or (n in known and not mine.isdisjoint(known[n]))]
