"""Whether the fields of a value have what their annotations say, for values that users write."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fxquant.config.forms import closest
from fxquant.errors import ConfigError

_SETS, _ROWS = (frozenset, set, list, tuple), (tuple, list)
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}


def check_fields(value: object) -> None:
    """A ConfigError about the first field that has something else. Lists will do for tuples and sets."""
    for name, kind in _hints(type(value)).items():
        given = getattr(value, name)
        if not _is(given, kind):
            choices = [choice for choice in _choices(kind) if isinstance(choice, str)]
            near = closest(given, choices) if isinstance(given, str) else ""
            raise ConfigError(f"{type(value).__name__}({name}={given!r:.80}): expected {_told(kind)}.{near}")


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _is(given: object, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is(given, each) for each in args)
    if origin is Literal:
        return isinstance(given, str) and given in args
    if origin is tuple:
        if not isinstance(given, _ROWS):
            return False
        each = [args[0]] * len(given) if args[-1] is ... else list(args)
        return len(given) == len(each) and all(map(_is, given, each))
    if origin is frozenset:
        return isinstance(given, _SETS) and all(_is(item, args[0]) for item in given)
    if origin is Mapping:
        return isinstance(given, Mapping) and all(_is(a, args[0]) and _is(b, args[1]) for a, b in given.items())
    if origin is Callable:
        return callable(given)
    if kind in (int, float):
        return isinstance(given, (int, kind)) and not isinstance(given, bool)
    return isinstance(given, kind)


def _choices(kind: Any) -> tuple[object, ...]:
    """The values that a field may have, if it has a few."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    found = [_choices(each) for each in get_args(kind) if get_origin(kind) in (Union, types.UnionType)]
    return tuple(choice for each in found for choice in each)


def _told(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return ", or ".join(_told(each) for each in args)
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}" if len(args) > 1 else repr(args[0])
    if origin is tuple:
        many = args[-1] is ...
        return f"a tuple, each {_told(args[0])}" if many else f"({', '.join(_told(each) for each in args)})"
    if origin is frozenset:
        return f"a set, each {_told(args[0])}"
    if origin is Mapping:
        return f"a dict, for each key {_told(args[1])}"
    if origin is Callable:
        return "a function"
    return _NAMES.get(kind, f"a {kind.__name__}")
