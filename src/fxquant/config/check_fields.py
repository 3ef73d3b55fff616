"""Whether the fields of a value and the arguments of a call, which users write, are what their annotations say.

Lists will do for tuples and sets; they are kept as what the annotation says, which nobody changes from outside.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fxquant.config.forms import closest
from fxquant.errors import ConfigError

Test = Callable[[object], bool]
Make = Callable[[Any], object]
_SETS, _ROWS = (frozenset, set, list, tuple), (tuple, list)
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}


def check_fields(value: object) -> None:
    """Raise a ConfigError about the first field that has something else; write lists as tuples or sets."""
    cls: type = type(value)
    for name, (holds, kind, make) in _fields(cls).items():
        given = getattr(value, name)
        if not holds(given):
            choices = [choice for choice in _choices(kind) if isinstance(choice, str)]
            near = closest(given, choices) if isinstance(given, str) else ""
            raise ConfigError(f"{cls.__name__}({name}={given!r:.80}): expected {_told(kind)}.{near}")
        if make is not None and given is not None:
            object.__setattr__(value, name, make(given))  # values are frozen


def check_arguments(call: Callable[..., object], *, at_least: float | None = None, **given: object) -> None:
    """Raise a ConfigError about the first argument of a call that is something else, or a number below `at_least`."""
    named = types.SimpleNamespace(__annotations__={name: call.__annotations__[name] for name in given})
    for name, kind in get_type_hints(named, vars(sys.modules[call.__module__])).items():
        value, choices = given[name], [choice for choice in _choices(kind) if isinstance(choice, str)]
        small = at_least is not None and isinstance(value, (int, float)) and not value >= at_least
        if small or not _test(kind)(value):
            near = closest(value, choices) if isinstance(value, str) else ""
            told = f"{at_least} or more" if small else _told(kind)
            raise ConfigError(f"{call.__name__}({name}={value!r:.80}): expected {told}.{near}")


@functools.cache  # values are made often, and reading annotations takes long
def _fields(cls: type) -> Mapping[str, tuple[Test, object, Make | None]]:
    return {name: (_test(kind), kind, _maker(kind)) for name, kind in get_type_hints(cls).items()}


def _maker(kind: object) -> Make | None:
    """Return what brings a row, a set, or a mapping to such, into the form of its type; None for other types."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        made = [maker for each in args if (maker := _maker(each)) is not None]
        return made[0] if len(made) == 1 and len(args) == 2 and types.NoneType in args else None
    if origin is tuple:
        return tuple
    if origin is frozenset:
        return frozenset
    of_value = _maker(args[1]) if origin is Mapping else None
    return None if of_value is None else lambda given: {key: of_value(item) for key, item in given.items()}


def _test(kind: object) -> Test:
    """Return what tells whether a value is of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        any_of = [_test(each) for each in args]
        return lambda given: any(test(given) for test in any_of)
    if origin is Literal:
        return lambda given: isinstance(given, str) and given in args
    if origin is tuple:
        tests = [_test(each) for each in args if each is not ...]
        if args[-1] is ...:
            return lambda given: isinstance(given, _ROWS) and all(map(tests[0], given))
        return lambda given: (
            isinstance(given, _ROWS)
            and len(given) == len(tests)
            and all(test(item) for test, item in zip(tests, given, strict=True))
        )
    if origin is frozenset:
        of_item = _test(args[0])
        return lambda given: isinstance(given, _SETS) and all(map(of_item, given))
    if origin is Mapping:
        of_key, of_value = map(_test, args)
        return lambda given: isinstance(given, Mapping) and all(of_key(a) and of_value(b) for a, b in given.items())
    if origin in (list, Sequence):
        of_each, rows = _test(args[0]), list if origin is list else _ROWS
        return lambda given: isinstance(given, rows) and all(map(of_each, given))
    if origin is type:
        return lambda given: isinstance(given, type) and issubclass(given, args[0])
    if origin is Callable:
        return callable
    if origin is os.PathLike or kind is Path:
        return lambda given: isinstance(given, os.PathLike)
    assert isinstance(kind, type)
    if kind in (int, float):
        return lambda given: isinstance(given, (int, kind)) and not isinstance(given, bool)
    return lambda given: isinstance(given, kind)


def _choices(kind: object) -> tuple[object, ...]:
    """Return the values that a field may have, if it has a few."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    found = [_choices(each) for each in get_args(kind) if get_origin(kind) in (Union, types.UnionType)]
    return tuple(choice for each in found for choice in each)


def _told(kind: object) -> str:
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
        return "a dict" if args[1] is object else f"a dict, for each key {_told(args[1])}"
    if origin in (list, Sequence):
        return f"a list, each {_told(args[0])}"
    if origin is type:
        return f"a class derived from {args[0].__name__}"
    if origin is Callable:
        return "a function"
    if origin is os.PathLike or kind is Path:
        return "a path"
    assert isinstance(kind, type)
    if issubclass(kind, enum.Enum):
        return f"one of {', '.join(map(str, kind))}"
    return _NAMES.get(kind, f"a {kind.__name__}")
