"""What can hold state in Python, and how each kind is read, compared and put back."""

from __future__ import annotations

import collections
import operator
import pickle
import random
import types
from collections.abc import Callable, Collection
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fxquant.graph.own import read_slots
from fxquant.graph.region import OWN_KEYS

K = TypeVar("K")
Slots: TypeAlias = dict[types.MemberDescriptorType, object]
_OF_REGIONS = OWN_KEYS | {"forward"}  # which is on an instance while hooks are
KEPT = "_tensor_constant"  # begins the names of what a trace adds to its root


class Kind:
    """How one kind of holder is read, compared and put back."""

    def __init__(
        self,
        take: Callable[[Any], Any],
        same: Callable[[Any, Any], bool],
        put: Callable[[Any, Any], None],
        items: Callable[[Any], Any] = lambda state: (),
    ) -> None:
        self.take, self.same, self.put, self.items = take, same, put, items


def _same_items(a: Collection[object], b: Collection[object]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _read_table(table: dict[K, object]) -> dict[K, object]:
    """Return what a dict holds, past the methods of its own class: those may make something up, or fail."""
    keys = collections.OrderedDict.keys(table) if isinstance(table, collections.OrderedDict) else dict.keys(table)
    return {key: dict.__getitem__(table, key) for key in keys}


def _same_table(table: dict[K, object], state: dict[K, object]) -> bool:
    held = table if type(table) is dict else _read_table(table)
    return _same_items(held, state) and _same_items(held.values(), state.values())


def _put_table(table: dict[object, object], state: dict[object, object]) -> None:
    base = collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict
    base.clear(table)
    for key, value in state.items():
        base.__setitem__(table, key, value)


def _put_module(table: dict[str, object], state: dict[str, object]) -> None:
    for name in [name for name in table if name not in state and not name.startswith(KEPT)]:
        del table[name]
    table.update(state)


def _read_region(table: dict[str, object]) -> dict[str, object]:
    """Return the user's attributes of a region. Its graph, kernels and code are not what calls of it write to."""
    users = ((name, value) for name, value in table.items() if name not in _OF_REGIONS)
    return {name: value for name, value in users if not isinstance(value, nn.Module)}


def _put_region(table: dict[str, object], state: dict[str, object]) -> None:
    for name in _read_region(table).keys() - state:
        del table[name]
    table.update(state)


def _put_list(value: list[object], state: list[object]) -> None:
    list.__setitem__(value, slice(None), state)


def _put_set(value: set[object], state: set[object]) -> None:
    set.clear(value)
    set.update(value, state)


def _deque(value: collections.deque[object]) -> list[object]:
    return list(collections.deque.__iter__(value))


def _put_deque(value: collections.deque[object], state: list[object]) -> None:
    collections.deque.clear(value)
    collections.deque.extend(value, state)


def _read_cell(cell: types.CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _put_cell(cell: types.CellType, state: tuple[object, ...]) -> None:
    if state:
        cell.cell_contents = state[0]
    else:
        del cell.cell_contents


def _put_slots(value: object, state: Slots) -> None:
    for slot in read_slots(value):
        if slot not in state:
            slot.__delete__(value)
    for slot, item in state.items():
        slot.__set__(value, item)


def _put_tensor(value: Tensor, state: Tensor) -> None:
    with torch.no_grad():
        if value.shape != state.shape:
            value.resize_(state.shape)
        value.copy_(state)


def _put_array(value: NDArray[np.generic], state: NDArray[np.generic]) -> None:
    if value.flags.writeable:
        value[...] = state


def _read_bits(generator: np.random.Generator | np.random.RandomState) -> bytes:
    """Return the state of a generator of numpy's."""
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(generator.bit_generator.state)


def _put_bits(generator: np.random.Generator | np.random.RandomState, state: bytes) -> None:
    if isinstance(generator, np.random.RandomState):
        generator.set_state(pickle.loads(state))
    else:
        generator.bit_generator.state = pickle.loads(state)


TABLE = Kind(_read_table, _same_table, _put_table, lambda state: (*state, *state.values()))
MODULE = Kind(dict, _same_table, _put_module)
REGION = Kind(_read_region, lambda table, state: _same_table(_read_region(table), state), _put_region)
LIST = Kind(list.copy, lambda a, b: _same_items(list.copy(a), b), _put_list, lambda state: state)
SET = Kind(set.copy, lambda a, b: set.copy(a) == b, _put_set, lambda state: state)
DEQUE = Kind(_deque, lambda a, b: _same_items(_deque(a), b), _put_deque, lambda state: state)
CELL = Kind(_read_cell, lambda cell, state: _same_items(_read_cell(cell), state), _put_cell, lambda state: state)
SLOTS = Kind(read_slots, lambda a, b: _same_table(read_slots(a), b), _put_slots, lambda state: state.values())
TENSOR = Kind(lambda t: t.detach().clone(), torch.equal, _put_tensor)
ARRAY = Kind(lambda a: a.copy(), lambda a, b: a.tobytes() == b.tobytes(), _put_array)
CACHE = Kind(lambda f: f.cache_info().misses, lambda f, n: f.cache_info().misses == n, lambda f, _: f.cache_clear())
RANDOM = Kind(lambda g: g.get_state(), lambda g, s: torch.equal(g.get_state(), s), lambda g, s: g.set_state(s))
PYTHON_RANDOM = Kind(lambda r: r.getstate(), lambda r, s: r.getstate() == s, lambda r, s: r.setstate(s))
NUMPY_RANDOM = Kind(_read_bits, lambda g, s: _read_bits(g) == s, _put_bits)
GENERATORS: tuple[tuple[type, Kind], ...] = (
    (torch.Generator, RANDOM),
    (random.Random, PYTHON_RANDOM),
    (np.random.Generator, NUMPY_RANDOM),
    (np.random.RandomState, NUMPY_RANDOM),
)
CONTAINERS = (
    (dict, TABLE),
    (list, LIST),
    (set, SET),
    (collections.deque, DEQUE),
)
