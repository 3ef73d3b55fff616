"""What a captured graph runs besides the model's own ops: checks of its inputs, and mutation that stays in the graph.

A capture fixes what the example showed: values of arguments that are not tensors, the structure of containers, and
(with torch.export) some sizes. A call that differs raises an `InputError`, since the graph would answer wrongly.
The checks are nodes without users; `has_side_effect` is torch's own way to keep those from dead-code elimination.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import has_side_effect
from torch.utils import _pytree as pytree

from fxquant.capture.conditions import Condition, holds, show
from fxquant.errors import InputError
from fxquant.graph.container_reads import reads
from fxquant.graph.nodes import holds_argument

_ANY_SIZE = (
    "Capture the model again with example inputs like these, or with sizes='any', which leaves the code that looks at "
    "them as it is written."
)
_BOTH = "sizes='any', for calls of both kinds; a part of the model then runs those of the other kind in float."


@holds_argument
@has_side_effect
def check_fixed(value: object, name: str, fixed: object) -> None:
    """Raise unless an argument has the value it had in the capture."""
    if isinstance(value, torch.Tensor) or type(value) is not type(fixed) or value != fixed:
        given = "a tensor" if isinstance(value, torch.Tensor) else _short(value)
        raise InputError(
            f"argument {name!r} was {fixed!r} when the model was captured, now it is {given}; the graph holds for "
            f"{fixed!r} only. Capture the model again with example inputs that give {name!r} this value, or with "
            f"{_BOTH}"
        )


def _short(value: object) -> str:
    """Return a value in a message; of containers only what they are."""
    text = repr(value)
    return text if len(text) < 60 and "\n" not in text else f"a {type(value).__name__}"


@has_side_effect
def check_given(value: object, name: str) -> None:
    """Raise if an argument that was a tensor in the capture is left out."""
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"argument {name!r} was a tensor when the model was captured, now it is {_short(value)}. Pass a tensor, or "
            f"capture the model again with example inputs that leave {name!r} out, or with {_BOTH}"
        )


_READ: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "len": len,
    "keys": list,
    "str": str,
    "dtype": lambda value: value,
    "device": lambda value: value.type,
}


@has_side_effect
def check_same(value: object, how: str, fixed: object) -> None:
    """Raise unless metadata of the inputs (a size, a dtype, a decision about them) is as in the capture."""
    if (now := _READ[how](value)) != fixed:
        raise InputError(
            f"the model's code depends on {how}(...) of a size or dtype, which was {fixed!r} when it was captured and "
            f"is {now!r} for these inputs. Capture the model again with example inputs of this size, or with "
            "sizes='any'."
        )


def guard_rank(graph: fx.Graph, tensor: fx.Node, rank: int) -> None:
    """Write a check that a tensor has as many axes."""
    graph.call_function(check_same, (graph.call_method("dim", (tensor,)), "int", rank))


@reads("leaves")
def unpack(value: object, name: str, structure: str) -> list[object]:
    """Return the leaves of a container argument, which must have the structure it had in the capture.

    A torch.Size is a tuple: a graph is captured with copies of the arguments, and torch copies sizes as tuples.
    """
    spec = _load_structure(structure)
    try:
        is_size = isinstance(value, torch.Size) and spec.type is tuple
        return spec.flatten_up_to(tuple(value) if is_size else value)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise InputError(
            f"argument {name!r} has another structure than when the model was captured: {str(error).rstrip('.')}. "
            "Pass the same containers, lengths and keys, or capture the model again with such example inputs, or with "
            "sizes='any'."
        ) from error


@reads("item")
def take_item(container: Mapping[object, object], key: object, name: str) -> object:
    """Return the item of a container argument that the model's code reads."""
    try:
        return container[key]
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(
            f"argument {name!r} has no {key!r}, which it had when the model was captured. Pass it."
        ) from error


@reads("items")
@has_side_effect
def check_items(container: Collection[object], name: str, fixed: tuple[object, ...] | int) -> None:
    """Raise unless a container argument has the keys, or the number of items, that it had in the capture."""
    now = len(container) if isinstance(fixed, int) else tuple(container)
    if now != fixed:
        shown = f"{fixed} items" if isinstance(fixed, int) else f"the keys {list(fixed)}"
        raise InputError(
            f"argument {name!r} has another structure than when the model was captured: it had {shown}, now "
            f"{now if isinstance(now, int) else list(now)}. {_ANY_SIZE}"
        )


@reads("key")
@has_side_effect
def check_key(container: Container[object], name: str, key: object, present: bool) -> None:
    """Raise unless a container argument has a key if it had it in the capture, and only then."""
    if (key in container) is not present:
        had, has = ("had", "has not") if present else ("did not have", "has")
        raise InputError(f"argument {name!r} {had} {key!r} when the model was captured, and now {has}. {_ANY_SIZE}")


def pack(leaves: list[object], structure: str) -> object:
    """Undo `unpack`, for outputs in containers that are neither tuples, lists, dicts nor dataclasses."""
    return pytree.tree_unflatten(leaves, _load_structure(structure))


@functools.lru_cache(maxsize=256)
def _load_structure(structure: str) -> pytree.TreeSpec:
    return pytree.treespec_loads(structure)


@has_side_effect
def check_sizes(tensors: tuple[torch.Tensor, ...], names: tuple[str, ...], conditions: tuple[Condition, ...]) -> None:
    """Raise unless the sizes satisfy the conditions (see conditions.py)."""
    sizes = [t.shape if isinstance(t, torch.Tensor) else () for t in tensors]
    failed = [condition for condition in conditions if not holds(condition, sizes)]
    if failed:
        shown = ", ".join(f"{name} {tuple(size)}" for name, size in zip(names, sizes, strict=True))
        wanted = "; ".join(show(condition, names) for condition in failed)
        raise InputError(
            f"the captured graph does not hold for inputs of size {shown}: it needs {wanted}. "
            "Capture the model again with example inputs of this size, or with sizes='any'."
        )


def read_now(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it is at this place of a graph.

    What is done to tensors where they are made is no use for it.
    """
    return tensor


@has_side_effect
def apply_in_place(tensor: torch.Tensor, method: str, *args: object, **kwargs: object) -> object:
    """Call an in-place method. fx takes `call_method` nodes for pure, so one without users would be dropped."""
    call: Callable[..., Any] = getattr(tensor, method)
    return call(*args, **kwargs)
