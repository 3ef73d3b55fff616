"""Calls of a graph with some of the inputs that calibration kept, for algorithms that run it again a few times.

Most graphs take any number of rows, and pictures in any layout. A few pictures at a time, with channels last, take half
as long: tensors fit into the caches, and kernels need not bring them into another order first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Calls = Sequence[Sequence[Any]]

PARTS = 3  # of the samples; what the others find is judged by the last
_PICTURES = 4  # in a call


def ways_to_call(kept: list[list[object]], samples: int) -> Iterator[Calls]:
    """Yield calls with about so many samples: the fastest way first, last the one that any graph takes."""
    rows = _some_rows(kept, samples)
    if rows:
        yield [tree_map(_channels_last, some) for call in rows for some in _few_pictures(call)]
        yield rows
    yield _some_calls(kept, samples)


def in_parts(kept: list[list[object]], samples: int) -> Calls:
    """Return calls with at most so many samples, or one call: whole ones, or parts of a few pictures."""
    parts = [tree_map(_channels_last, part) for call in _some_calls(kept, samples) for part in _few_pictures(call)]
    return parts


def count_judges(calls: Calls) -> int:
    """Tell how many calls, the last, are kept apart; all, if there is but one."""
    return max(1, len(calls) // PARTS)


def _some_calls(kept: list[list[object]], samples: int) -> Calls:
    """Calls that calibration kept, spread over all, of so many samples or a few more."""
    tensors = [value for value in tree_leaves(kept[:1]) if isinstance(value, Tensor) and value.dim()]
    wanted = -(-samples // max((len(value) for value in tensors), default=1))
    return kept[:: max(1, len(kept) // wanted)][:wanted]


def _some_rows(kept: list[list[object]], samples: int) -> Calls:
    """So many samples in a few calls, spread over all; none where tensors of a call have not one row for each."""
    sizes = [
        {len(value) if value.dim() else 0 for value in tree_leaves(call) if isinstance(value, Tensor)} for call in kept
    ]
    if not kept or any(len(each) != 1 for each in sizes) or min(map(min, sizes)) <= 1:
        return []
    rows, found, taken = -(-samples // PARTS), list[list[object]](), [0] * len(kept)
    for part in range(PARTS):
        at = part * len(kept) // PARTS
        start, taken[at] = taken[at], min(taken[at] + rows, *sizes[at])
        if start < taken[at]:
            found.append(_rows(kept[at], start, taken[at]))
    return found


def _rows(call: Sequence[object], start: int, stop: int) -> list[object]:
    return [tree_map(lambda x: x[start:stop] if isinstance(x, Tensor) else x, value) for value in call]


def _few_pictures(call: Sequence[object]) -> Iterator[Sequence[object]]:
    """Split a call with pictures into smaller ones. Others stay: the first axis of sequences may be time."""
    size = max((len(value) for value in tree_leaves(call) if _is_picture(value)), default=0)
    if not size:
        yield call
    for start in range(0, size, _PICTURES):
        yield _rows(call, start, start + _PICTURES)


def _is_picture(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()


def _channels_last(value: object) -> object:
    return value.contiguous(memory_format=torch.channels_last) if _is_picture(value) else value
