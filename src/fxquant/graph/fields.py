"""Attributes of containers that opaque modules return, read as items: `found.last` as `found["last"]` or `found[0]`.

Items can be saved; attributes of any name are nothing that a file may read.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping

from torch import fx


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """Where a container has what it also has as an attribute; `key` None: the field of a dataclass that is not set."""

    key: str | int | None


def field_of(value: object, name: object) -> Field | None:
    """Return where a container has an attribute: transformers' outputs by its name, named tuples by its place."""
    if isinstance(value, Mapping) and name in value and getattr(value, str(name), None) is value[name]:
        return Field(str(name))
    fields = getattr(type(value), "_fields", ()) if isinstance(value, tuple) else ()
    if name in fields:
        return Field(fields.index(name))
    unset = dataclasses.is_dataclass(value) and getattr(value, str(name), value) is None
    return Field(None) if unset else None


def read_items(graph: fx.Graph, found: Mapping[fx.Node, Field]) -> None:
    """Let these nodes, which read attributes, read items."""
    for node, field in found.items():
        if field.key is not None:
            node.target, node.args = operator.getitem, (node.args[0], field.key)
            continue
        for user in list(node.users):
            user.args = fx.node.map_arg(user.args, functools.partial(_unless, node))
            user.kwargs = fx.node.map_arg(user.kwargs, functools.partial(_unless, node))
        graph.erase_node(node)


def _unless(gone: fx.Node, node: fx.Node) -> fx.Node | None:
    return None if node is gone else node
