"""Dicts, lists and tuples among the inputs, as the traced code sees them: what it looks at is fixed, and nothing else.

    data["image"]      a node that takes the item; other keys may come and go
    for x in images    as many as in the example, with a check of their number
    decode(data)       handed on whole to a call: the caller's own container, whatever is in it

A plain value (a number, a string) is fixed as soon as code can see it: by `data["flag"]`, or with the list it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from typing_extensions import Self

from fxquant.capture.guards import check_items, check_key, take_item

# (proxy of a value, its name in messages, its value in the example) -> what the code sees
Open = Callable[[fx.Proxy, str, Any], Any]


class Given:
    """What the three kinds share. `proxy` is the container itself; `seen` are the keys that code looked at."""

    proxy: fx.Proxy
    name: str
    example: Any
    open: Open
    seen: set[Any]
    counted: bool
    changed: bool

    def _begin(self, proxy: fx.Proxy, name: str, example: object, open_: Open) -> None:
        self.proxy, self.name, self.example, self.open = proxy, name, example, open_
        self.seen, self.counted, self.changed = set(), False, False

    def _take(self, key: object) -> object:
        item = self.proxy.tracer.create_proxy("call_function", take_item, (self.proxy, key, self.name), {})
        return self.open(item, f"{self.name}[{key!r}]", self.example[key])

    def _count(self) -> None:
        """Raise unless the keys, or the number of items, are as in the example."""
        if not self.counted:
            self.counted = True
            keys = tuple(self.example) if isinstance(self.example, dict) else len(self.example)
            self.proxy.tracer.create_proxy("call_function", check_items, (self.proxy, self.name, keys), {})

    def whole(self) -> object:
        """Return what a call is given."""
        return self.proxy


class GivenDict(Given, dict[Any, Any]):
    def __init__(self, proxy: fx.Proxy, name: str, example: dict[object, object], open_: Open) -> None:
        self._begin(proxy, name, example, open_)
        super().__init__(dict.fromkeys(example, proxy))  # torch.fx.wrap looks for proxies in what a call is given

    def __getitem__(self, key: object) -> object:
        if key not in self.seen and not self.changed and dict.__contains__(self, key):
            self.seen.add(key)
            dict.__setitem__(self, key, self._take(key))
        return dict.__getitem__(self, key)

    def get(self, key: object, default: object = None) -> object:
        found = key in self
        return self[key] if found else default

    def __contains__(self, key: object) -> bool:
        found = dict.__contains__(self, key)
        if not self.counted and not self.changed and key not in self.seen:
            arguments = (self.proxy, self.name, key, found)
            self.proxy.tracer.create_proxy("call_function", check_key, arguments, {})
        return found

    def _open_all(self) -> GivenDict:
        self._count()
        for key in dict.keys(self):
            self[key]
        return self

    def whole(self) -> object:
        return dict(dict.items(self)) if self.changed else self.proxy

    def _change(self) -> None:
        self._open_all().changed = True


class _GivenSequence(Given):
    """Lists and tuples: C code reads them past our methods, so plain values in them are fixed from the start."""

    def _open_all(self) -> Self:
        self._count()
        return self

    def _count_plain(self) -> None:
        if not all(isinstance(item, torch.Tensor) or is_container(item) for item in self.example):
            self._count()

    def _change(self) -> None:
        self._open_all().changed = True


class GivenList(_GivenSequence, list[Any]):
    def __init__(self, proxy: fx.Proxy, name: str, example: list[object], open_: Open) -> None:
        self._begin(proxy, name, example, open_)
        super().__init__(self._take(index) for index in range(len(example)))
        self._count_plain()

    def whole(self) -> object:
        return list(list.__iter__(self)) if self.changed else self.proxy


class GivenTuple(_GivenSequence, tuple[Any, ...]):
    def __new__(cls, proxy: fx.Proxy, name: str, example: tuple[object, ...], open_: Open) -> GivenTuple:
        maker = Given()
        maker._begin(proxy, name, example, open_)
        made = super().__new__(cls, (maker._take(index) for index in range(len(example))))
        made._begin(proxy, name, example, open_)
        made._count_plain()
        return made

    def __init__(self, *_: object) -> None:
        pass


def _reading(kind: type, method: str) -> Callable[..., object]:
    original = getattr(kind, method)

    def call(self: GivenDict | _GivenSequence, *args: object, **kwargs: object) -> object:
        return original(self._open_all(), *args, **kwargs)

    return call


def _changing(kind: type, method: str) -> Callable[..., object]:
    original = getattr(kind, method)

    def call(self: GivenDict | _GivenSequence, *args: object, **kwargs: object) -> object:
        self._change()
        return original(self, *args, **kwargs)

    return call


_READS = ("__iter__", "__len__", "__eq__", "__ne__", "__reversed__", "copy", "keys", "values", "items", "__or__")
_SEQUENCE_READS = ("__getitem__", "__contains__", "__add__", "__mul__", "__rmul__", "index", "count")
_CHANGES = (
    *("__setitem__", "__delitem__", "pop", "popitem", "update", "setdefault", "clear", "__ior__"),
    *("append", "extend", "insert", "remove", "sort", "reverse", "__iadd__", "__imul__"),
)

for _cls, _kind, _names in (
    (GivenDict, dict, _READS),
    (GivenList, list, (*_READS, *_SEQUENCE_READS)),
    (GivenTuple, tuple, (*_READS, *_SEQUENCE_READS)),
):
    for _name in _names:
        if hasattr(_kind, _name):
            setattr(_cls, _name, _reading(_kind, _name))
    for _name in _CHANGES:
        if hasattr(_kind, _name):
            setattr(_cls, _name, _changing(_kind, _name))

_KINDS: dict[type, type[Given]] = {dict: GivenDict, list: GivenList, tuple: GivenTuple}


def open_container(proxy: fx.Proxy, name: str, example: object, open_: Open) -> object:
    """Return the container that code sees in the place of one of the inputs."""
    return _KINDS[type(example)](proxy, name, example, open_)  # type: ignore[call-arg]


def is_container(value: object) -> bool:
    return type(value) in _KINDS


def hand_on(value: Any) -> Any:
    """Arguments of a call, with the proxies of the containers in them that the caller gave."""
    if isinstance(value, Given):
        return hand_on(value.whole())
    if type(value) in (list, tuple):
        return type(value)(hand_on(item) for item in value)
    if type(value) is dict:
        return {key: hand_on(item) for key, item in value.items()}
    return value


def parts_of(value: object) -> Iterator[object]:
    """Yield a container, and those in it."""
    if isinstance(value, (dict, list, tuple)) and is_container(value):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts_of(item)
