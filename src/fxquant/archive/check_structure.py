"""The structure of a container, as pytree writes it: JSON in which each container has its type and a context.

    [1, {"type": "builtins.dict", "context": "[\\"x\\"]", "children_spec": [{"type": null, ...}]}]

A context is JSON in a string. torch imports what some name in it: the factory of a defaultdict, the class of an enum.
"""

from __future__ import annotations

import json

_KEYED = ("builtins.dict", "collections.OrderedDict")  # their contexts are lists of keys


def is_plain(structure: object) -> bool:
    """Tell whether reading a structure imports nothing: its contexts are plain values, and lists of such."""
    if not isinstance(structure, str):
        return False
    try:
        version, whole = json.loads(structure)
        return isinstance(version, int) and _is_plain_container(whole)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_plain_container(spec: dict[str, object]) -> bool:
    kind, context, children = spec["type"], spec["context"], spec["children_spec"]
    if not isinstance(children, list) or not all(map(_is_plain_container, children)):
        return False
    if context is None:
        return kind is None or isinstance(kind, str)
    if not isinstance(kind, str) or not isinstance(context, str) or "defaultdict" in kind:
        return False
    if kind in _KEYED:
        keys = json.loads(context)
        return isinstance(keys, list) and not any(isinstance(key, (list, dict)) for key in keys)
    return '"' not in context and "\\" not in context  # what other classes read in it is theirs
