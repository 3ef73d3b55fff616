"""What the answer of a region depends on besides its arguments, as plain facts that can all be looked at quickly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import getitem, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

ABSENT = object()  # in `places`: nothing stands there


def stand_there(tables: Iterable[Mapping[str, Any]], keys: Iterable[str], objects: Iterable[object]) -> bool:
    """Tell whether these very objects stand at the keys of their tables. One pass in C: this is before each call."""
    try:
        return all(map(is_, map(getitem, tables, keys), objects))
    except KeyError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Facts that held at a call. While they hold, nothing has been put elsewhere or written to."""

    places: tuple[tuple[Mapping[str, Any], str, object], ...] = ()  # which object stands at a key of a table
    kinds: tuple[tuple[object, type], ...] = ()  # of which class an object is
    pointers: tuple[tuple[Tensor, int], ...] = ()  # where the memory of a tensor is
    versions: tuple[tuple[Tensor, int], ...] = ()  # how often a tensor was written to
    memory: tuple[tuple[NDArray[np.uint8], bytes], ...] = ()  # what is in it, where writes are not counted

    def __add__(self, other: Standing) -> Standing:
        return Standing(
            places=self.places + other.places,
            kinds=self.kinds + other.kinds,
            pointers=self.pointers + other.pointers,
            versions=self.versions + other.versions,
            memory=self.memory + other.memory,
        )
