"""Arguments that are containers: which tensors a graph reads of them, and containers with just these.

A graph reads a container by functions of its own, which say how they do (`reads`): all leaves at once, one item, or
a look at its items. So the tensors are all that has to be kept of a call, and the rest follows from the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from torch import fx
from torch.utils import _pytree as pytree

from fxquant.graph.nodes import NOT_HELD, held_value, tensor_info

How = Literal["leaves", "item", "items", "key"]
_Read = TypeVar("_Read", bound=Callable[..., object])
_reads: dict[object, How] = {}


def reads(how: How) -> Callable[[_Read], _Read]:
    """Make known a function of graphs whose first argument is a container.

    "leaves" `(container, name, structure)` gives all that is in it, "item" `(container, key, name)` one item; "items"
    `(container, name, keys or their number)` and "key" `(container, name, key, present)` check what is there.
    """

    def known(function: _Read) -> _Read:
        _reads[function] = how
        return function

    return known


def tensors_read(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the tensors that a graph reads of an argument: itself, or what is in the container that it is."""
    if tensor_info(node) is not None:
        yield node
        return
    for user in node.users:
        how = _how(user, node)
        if how == "leaves":
            yield from (item for item in user.users if tensor_info(item) is not None)
        elif how == "item":
            yield from tensors_read(user)


def rebuilt(node: fx.Node, given: Mapping[str, object]) -> object:
    """Return a value for an argument in which a graph finds the given tensors, by name; a ValueError if it may not."""
    if node.name in given:
        return given[node.name]
    held = held_value(node)
    if held is not NOT_HELD:
        return held
    if not node.users:
        return node.args[0] if node.op == "placeholder" and node.args else None
    hows = {user: _how(user, node) for user in node.users}
    if None in hows.values() or ("leaves" in hows.values() and len(hows) > 1):
        raise ValueError(f"the graph reads {node.name!r} in a way of its own")
    return _from_leaves(node, given) if "leaves" in hows.values() else _from_items(hows, given)


def _from_leaves(container: fx.Node, given: Mapping[str, object]) -> object:
    (node,) = container.users
    structure = pytree.treespec_loads(str(node.args[2]))
    found: list[object] = [None] * structure.num_leaves
    for user in node.users:
        if user.target is not operator.getitem:
            raise ValueError(f"the graph reads {node.name!r} in a way of its own")
        found[cast(int, user.args[1])] = rebuilt(user, given)
    return pytree.tree_unflatten(found, structure)


def _from_items(hows: Mapping[fx.Node, How | None], given: Mapping[str, object]) -> object:
    found: dict[Any, object] = {}
    length = -1
    for user, how in hows.items():
        if how == "items" and isinstance(user.args[2], int):
            length = user.args[2]
        elif how == "items":
            found = {**dict.fromkeys(cast(tuple[object, ...], user.args[2])), **found}
        elif how == "key" and user.args[3]:
            found.setdefault(user.args[2])
    found.update({user.args[1]: rebuilt(user, given) for user, how in hows.items() if how == "item"})
    if length < 0:
        return found
    if not all(isinstance(key, int) for key in found):
        return {**found, **{object(): None for _ in range(length - len(found))}}
    return [found.get(index, found.get(index - length)) for index in range(length)]


def _how(user: fx.Node, node: fx.Node) -> How | None:
    """Tell how a node reads a container; None if it does something else with it."""
    return _reads.get(user.target) if user.args and user.args[0] is node else None
