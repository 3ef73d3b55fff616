"""Whether a captured graph holds for another batch size than the example's.

A trace that was given the example's sizes may hold for just these. The inputs are doubled along their first dimension,
and the graph is tried.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fxquant.capture.compare import difference, evaluating, run, trying
from fxquant.core.graph import clone_tree


def batch_size(values: Any) -> int | None:
    """The first size of the first tensor; None if there is none."""
    first = next((leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)), None)
    return int(first.shape[0]) if first is not None and first.dim() else None


def double_batch(values: Any) -> Any:
    """The same values with tensors twice as long, where their first size is the batch size."""
    size = batch_size(values)

    def double(leaf: Any) -> Any:
        fits = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size
        return torch.cat([leaf, leaf]) if fits else leaf

    return cast(Any, pytree.tree_map(double, values))


def fixes_batch(model: nn.Module, captured: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the model takes a batch of twice the size and what was captured of it does not."""
    if not batch_size((args, kwargs)):
        return False
    more_args, more_kwargs = double_batch((args, kwargs))
    reference = clone_tree(model)
    try:
        with evaluating(reference), trying():
            theirs = run(reference, more_args, more_kwargs)
    except Exception:
        return False  # the model itself is made for one size
    try:
        with evaluating(captured), trying():
            return difference(run(captured, more_args, more_kwargs), theirs) is not None
    except Exception:
        return True
