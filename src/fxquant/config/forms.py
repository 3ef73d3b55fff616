"""Reading the forms in which a custom config may be given: dicts with singular or plural keys, tuples, class pairs."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch import nn

from fxquant.errors import ConfigError

E = TypeVar("E", bound=enum.Enum)


def closest(name: str, known: Iterable[str]) -> str:
    """` Closest: 'layer1.conv1'.`, or nothing. Capitals do not count."""
    by_lower = {k.lower(): k for k in known if k}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Closest: {by_lower[match[0]]!r}." if match else ""


def as_strings(value: str | Iterable[str]) -> list[str]:
    """Return one name or several as a tuple."""
    return [value] if isinstance(value, str) else list(value)


def as_indexes(value: object, key: str) -> list[int]:
    """Positions, checked."""
    indexes: list[Any] = list(value) if isinstance(value, (list, tuple, set)) else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in indexes):
        raise ConfigError(f"{key}={value!r}: expected a list of positions, such as [0].")
    return indexes


def need_module_class(cls: object, key: str) -> type[nn.Module]:
    """Return the class, if it is one of modules."""
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise ConfigError(f"{key} has {cls!r}, which is not a class of modules. Give an nn.Module subclass.")
    return cls


def need_method(cls: object, method: str, key: str) -> None:
    """Raise a ConfigError if a class of modules lacks a method."""
    need_module_class(cls, key)
    if not callable(getattr(cls, method, None)):
        raise ConfigError(
            f"{key}: {getattr(cls, '__name__', cls)} has no method {method!r}. "
            f"Give it a classmethod {method}(cls, module) that returns the module to put there."
        )


def read_keys(what: str, given: Mapping[str, object], setters: Mapping[str, Callable[..., object]]) -> None:
    """Call the setter of each key; an unknown key is an error."""
    for key, value in given.items():
        if key not in setters:
            hint = closest(key, setters) or f" Known: {', '.join(setters)}."
            raise ConfigError(f"{what} key {key!r} is unknown.{hint}")
        setters[key](value)


def set_each(setter: Callable[..., object], rows: Iterable[object]) -> None:
    """Call a setter with the entries of a list, as torch.ao has them: tuples of arguments."""
    for row in [rows] if isinstance(rows, (str, type)) else rows:
        setter(*row) if isinstance(row, (list, tuple)) else setter(row)


def set_pairs(setter: Callable[..., object], by_type: object) -> None:
    """Call a setter with each pair of `{quant type: {class: class}}`."""
    if not isinstance(by_type, Mapping) or not all(isinstance(pairs, Mapping) for pairs in by_type.values()):
        raise ConfigError(f'custom modules are given as {{"static": {{From: To}}}}, not as {by_type!r}.')
    for quant_type, pairs in by_type.items():
        for one, other in pairs.items():
            setter(one, other, quant_type)


def by_quant_type(pairs: Mapping[E, Mapping[type[nn.Module], type[nn.Module]]]) -> dict[str, dict[type, type]]:
    """Pairs of classes as `{quant type: {class: class}}`, which `set_pairs` reads."""
    return {quant_type.value: dict(by_class) for quant_type, by_class in pairs.items()}


def given(entries: Mapping[str, object]) -> dict[str, object]:
    """Return the entries that hold something, lists copied."""
    return {key: list(value) if isinstance(value, list) else value for key, value in entries.items() if value}


def as_dict(config: object, what: str) -> Mapping[str, object]:
    """Return a config as a dict: given as one, or by torch.ao's object."""
    if isinstance(config, Mapping):
        return config
    to_dict = getattr(config, "to_dict", None)
    if not callable(to_dict):
        raise ConfigError(f"{what} is a {type(config).__name__}. Give a dict or fxquant's own class.")
    found = to_dict()
    assert isinstance(found, Mapping)
    return found
