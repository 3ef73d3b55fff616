"""Graphs as plain rows that pickle, and back. `META_KEYS` is what goes along of `node.meta` (see graph/region.py)."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from torch import fx
from torch.fx.node import _get_qualified_name, map_arg

META_KEYS = ("scope", "where", "tensor", "mutated", "unfused", "choice", "note", "decision", "moved")


@dataclass(frozen=True, slots=True)
class Ref:
    """A node, by name, in an encoded graph."""

    name: str


class EncodedGraph(TypedDict):
    """A graph as rows (op, name, target, args, kwargs, meta); nodes among the arguments are Refs."""

    rows: list[tuple[str, str, Any, Any, Any, dict[str, object]]]
    pytree: fx.graph._PyTreeInfo | None


def encode_graph(graph: fx.Graph) -> EncodedGraph:
    """Return a graph as plain rows that pickle: targets by qualified name where that finds them again."""
    rows = []
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), cast(Any, lambda n: Ref(n.name)))
        meta = {key: node.meta[key] for key in META_KEYS if key in node.meta}
        rows.append((node.op, node.name, _encode_target(node), args, kwargs, meta))
    codegen = graph._codegen
    pytree = codegen.pytree_info if isinstance(codegen, fx.graph._PyTreeCodeGen) else None
    return {"rows": rows, "pytree": pytree}


def decode_graph(encoded: EncodedGraph) -> fx.Graph:
    """Return the inverse of `encode_graph`."""
    graph = fx.Graph()
    if encoded["pytree"] is not None:
        graph.set_codegen(fx.graph._PyTreeCodeGen(encoded["pytree"]))
    nodes: dict[str, fx.Node] = {}
    for op, name, target, args, kwargs, meta in encoded["rows"]:
        if op == "call_function" and isinstance(target, str):
            target = resolve_function(target)
        args, kwargs = _restore(args, nodes), _restore(kwargs, nodes)
        node = graph.create_node(op, target, args, kwargs, name=name)
        node.meta.update(meta)
        nodes[name] = node
    return graph


def _restore(value: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(value, Ref):
        return nodes[value.name]
    if isinstance(value, slice):
        return slice(*(_restore(part, nodes) for part in (value.start, value.stop, value.step)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_restore(item, nodes) for item in value))
    if isinstance(value, (list, tuple)):
        restored = [_restore(item, nodes) for item in value]
        return restored if isinstance(value, list) else tuple(restored)
    if isinstance(value, dict):
        return {key: _restore(item, nodes) for key, item in value.items()}
    return value


def _encode_target(node: fx.Node) -> object:
    if node.op != "call_function":
        return node.target
    name = _get_qualified_name(cast(Any, node.target)).replace("_operator.", "operator.")
    try:
        found = resolve_function(name)
    except (ImportError, AttributeError):
        return node.target
    return name if found is node.target or found == node.target else node.target


def resolve_function(name: str) -> object:
    """Return the function with a qualified name such as `torch.nn.functional.relu` or `torch.ops.aten.add.Tensor`."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:  # to look for what is no module takes long
            with contextlib.suppress(AttributeError):
                return functools.reduce(getattr, parts[cut:], cast(Any, module))
            break
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    # builtins such as getattr have no dotted name
    return getattr(importlib.import_module("builtins"), name)
