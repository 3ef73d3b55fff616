"""The values that the placeholders of a graph get: tensors, numbers, and containers of such."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

LISTS = (tuple, list, torch.Size)
_CONTAINERS = (*LISTS, dict)


def is_flat(values: Iterable[object]) -> bool:
    """Tell whether there is no container among values."""
    return not any(type(value) in _CONTAINERS for value in values)


def leaves(values: Iterable[object]) -> list[object]:
    """Return the values, and in the place of containers what is in them."""
    found: list[object] = []
    for value in values:
        if type(value) in LISTS:
            found += leaves(value)  # type: ignore[arg-type]
        elif type(value) is dict:
            found += leaves(value.values())
        else:
            found.append(value)
    return found


def batch_of(inputs: Iterable[object]) -> int:
    """Return the batch: what tensors have in front, but for those that are the same for all samples."""
    return max(value.shape[0] for value in leaves(inputs) if isinstance(value, Tensor))


def first_sample(inputs: Sequence[object]) -> list[object]:
    """Return the inputs of the first sample."""
    made: list[object] = pytree.tree_map_only(Tensor, lambda value: value[:1], list(inputs))
    return made
