"""What a graph computes in Python beside its tensors: numbers, texts and containers. None may grow without end.

Numbers fit 64 bits, and are products of few sizes; texts name things, and are not computed with; a container has at
most `MOST_PARTS` values, those of containers inside it included. All of it holds for values that a run without data
cannot tell, too: of these it is counted how much larger they get than what they are made from.
"""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.archive.value_json import MOST_INT, MOST_TEXT, is_whole
from fxquant.capture import guards
from fxquant.errors import ArchiveError

MOST_PARTS = 100_000  # of what one node makes
MOST_IN_ALL = 3_000_000  # of what all nodes of a graph take and make; a file of more bytes may have one for each
MOST_DEGREE = 16  # of the product of sizes that a number is
_POWER = 64
_PRODUCTS = (operator.mul, operator.imul)
_POWERS = (operator.pow, operator.ipow)
_GOES_THROUGH = (list, tuple, dict, OrderedDict, sum, max, min, guards.check_items)
_TAKES_TEXT = (
    *(getattr, dict, OrderedDict, len, list, tuple, operator.getitem, operator.setitem),
    *(operator.eq, operator.ne, operator.contains, operator.is_, operator.is_not),
)
_MAKES_NUMBERS = (int, float, bool, round, len, operator.index, operator.truth, operator.not_, operator.contains)
_OF_SIZES = ("numel", "index", "__getitem__", "__len__")  # methods of a torch.Size
_OF_UNKNOWN = ("__getitem__", "__len__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


class Unknown:
    """A value that a run without data cannot tell."""

    def __repr__(self) -> str:
        return "unknown"


class Number(Unknown):
    """A number read from the values of a tensor."""


UNKNOWN, NUMBER = Unknown(), Number()


def is_python(node: fx.Node) -> bool:
    """Tell whether a node calls a function of Python, not of torch."""
    module = getattr(node.target, "__module__", "") if node.op == "call_function" else ""
    return module in ("_operator", "math", "builtins", "collections")


def leaves_of(value: object) -> list[object]:
    """Return what is inside of containers, ends of slices included.

    It is an ArchiveError if that is more than they may hold.
    """
    found: list[Any] = []
    todo: list[Iterator[Any]] = [iter((value,))]
    seen = 0
    while todo:
        for item in todo[-1]:
            seen += 1
            if seen > MOST_PARTS + 10 or len(todo) > MOST_PARTS:
                raise ArchiveError(f"it makes a container of more than {MOST_PARTS} values.")
            inside = _inside(item)
            if inside is None:
                found.append(item)
            else:
                todo.append(iter(inside))
                break
        else:
            todo.pop()
    return found


def _inside(value: object) -> tuple[object, ...] | list[object] | None:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    return None


def check_receiver(node: fx.Node, args: tuple[object, ...]) -> None:
    """Methods are those of tensors. Numbers, texts and lists have some of the same names, which do other things."""
    if node.op == "call_method":
        receiver, name = args[0], str(node.target)
    elif node.target is guards.apply_in_place:
        receiver, name = args[0], str(args[1])
    else:
        return
    if isinstance(receiver, Tensor) or (isinstance(receiver, torch.Size) and name in _OF_SIZES):
        return
    if not isinstance(receiver, Unknown) or (name.startswith("__") and name not in _OF_UNKNOWN):
        raise ArchiveError(f"it calls {name!r} of a {type(receiver).__name__}, which is no tensor.")


def check_values_of_python(
    node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object], degrees: list[int]
) -> None:
    """Raise an ArchiveError for a call that goes through a large tensor, computes with texts, or repeats a list."""
    if node.target in _GOES_THROUGH or (node.target is guards.check_same and args[1:2] == ("keys",)):
        for leaf in args:
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] > MOST_PARTS:
                raise ArchiveError(f"it goes through a tensor of {leaf.shape[0]} rows one by one.")
    if not is_python(node):
        return
    plain = _without_key(node, args)
    texts = any(isinstance(leaf, str) for leaf in leaves_of((plain, tuple(kwargs.values()))))
    hidden = node.target is operator.getitem and any(isinstance(leaf, Unknown) for leaf in leaves_of(args[1:]))
    if texts and (hidden or node.target not in _TAKES_TEXT):
        raise ArchiveError("it computes with a text.")
    if node.target in _PRODUCTS and any(isinstance(arg, (list, tuple)) for arg in args):
        _check_repeated(node, args, degrees)


def _without_key(node: fx.Node, args: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments without the name of an item or an attribute."""
    named = node.target in (getattr, operator.getitem, operator.setitem) and len(args) > 1 and isinstance(args[1], str)
    return (args[0], *args[2:]) if named else args


def _check_repeated(node: fx.Node, args: tuple[object, ...], degrees: list[int]) -> None:
    sizes = [arg for arg in args if not isinstance(arg, (list, tuple))]
    parts = len(leaves_of([arg for arg in args if isinstance(arg, (list, tuple))]))
    whole = [size for size in sizes if is_whole(size, -MOST_INT, MOST_PARTS)]
    if len(whole) < len(sizes) or parts * max(whole, default=1) > MOST_PARTS:
        raise ArchiveError(f"it repeats a list to more than {MOST_PARTS} values, or as often as values say.")
    if sum(isinstance(arg, fx.Node) for arg in node.args) > 1 or max(degrees, default=0) > 1:
        raise ArchiveError("it repeats a list as often as the inputs say.")


def degree_of(node: fx.Node, leaves: list[object], degrees: list[int]) -> int:
    """Of how many sizes a number is the product that a node computes. Too many are refused.

    So the numbers of a run on other sizes than the example's are bounded, too.
    """
    if not all(isinstance(leaf, (int, float, Unknown)) for leaf in leaves):
        return 1
    if node.target in _POWERS and not (is_whole(node.args[1], -_POWER, _POWER) or isinstance(node.args[1], float)):
        raise ArchiveError("it raises a number to a power that the inputs say, or a large one.")
    degree = sum(degrees) if node.target in _PRODUCTS else max(degrees, default=0)
    if node.target in _POWERS:
        assert isinstance(node.args[1], (int, float))
        degree *= max(1, math.ceil(min(abs(node.args[1]), 2 * MOST_DEGREE)))
    if degree > MOST_DEGREE:
        raise ArchiveError(f"it multiplies more than {MOST_DEGREE} sizes.")
    return degree


def weight_of(node: fx.Node, weights: dict[fx.Node, int]) -> int:
    """Tell how many times larger than what it was made from a value may be, of which no more is known."""
    if not is_python(node) and node.op != "call_method":
        return 1
    total = sum(weights.get(each, 1) for each in _nodes(node.args)) + sum(
        weights.get(each, 1) for each in _nodes(tuple(node.kwargs.values()))
    )
    if total > MOST_PARTS:
        raise ArchiveError(f"it makes a container of more than {MOST_PARTS} values.")
    if node.target is operator.setitem and isinstance(node.args[0], fx.Node):
        weights[node.args[0]] = total
    return max(total, 1)


def _nodes(value: object) -> list[fx.Node]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, fx.Node)]


def reads_number(node: fx.Node) -> bool:
    """Tell whether a function of Python makes a number of a tensor."""
    return node.target in _MAKES_NUMBERS or getattr(node.target, "__module__", "") == "math"


def check_result(leaves: list[object]) -> list[Tensor]:
    """Return the tensors of what a node made; an ArchiveError if the rest is too large."""
    tensors = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, str) and len(leaf) > MOST_TEXT:
            raise ArchiveError(f"it makes a text of {len(leaf)} characters.")
        elif type(leaf) is int and abs(leaf) > MOST_INT:
            raise ArchiveError("it makes a whole number that does not fit 64 bits.")
    return tensors
