"""Batches that give other arguments than their neighbours: `[(x,), (x, cache)]`, where forward runs without a cache.

One graph holds for one such call. A list of batches shows that there are several before anything is captured.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from fxquant.graph.tree import OF_A_LOSS, is_several

Call = tuple[tuple[object, ...], dict[str, object]]


def fullest_call(data: object, model: nn.Module) -> Call | None:
    """Return the call with most arguments among batches that differ in which they give; None where they do not.

    Only a list is looked at: a loader would have to be read twice. All must be calls that the model's signature takes.
    """
    if not isinstance(data, Sequence) or isinstance(data, str) or len(data) < 2:
        return None
    calls = [_call(batch) for batch in data]
    given = [_given(model, call) for call in calls]
    if None in given or len(set(given)) < 2:
        return None
    fullest = max(range(len(calls)), key=lambda index: len(given[index] or ()))
    return calls[fullest]


def _call(batch: object) -> Call:
    if isinstance(batch, Mapping):
        return (), {key: value for key, value in batch.items() if key not in OF_A_LOSS}
    return (tuple(batch) if is_several(batch) else (batch,)), {}


def _given(model: nn.Module, call: Call) -> frozenset[str] | None:
    """Return the names of the arguments that a call gives, or None if it is not one of this model."""
    signature = inspect.signature(model.forward)
    kwargs = {key: value for key, value in call[1].items() if key in signature.parameters}
    try:
        return frozenset(signature.bind(*call[0], **kwargs).arguments)
    except TypeError:
        return None


def warn_of_lengths(lengths: Iterable[int], taken: int | None) -> None:
    """Tell of batches of several lengths of which the ends were left out: labels would be in all of them."""
    found = sorted(set(lengths))
    if taken and len(found) > 1 and found[-1] > taken:
        warnings.warn(
            f"batches have {' or '.join(map(str, found))} values, and what goes beyond the {taken} of the example "
            "inputs was left out. If it is an input, give example inputs with all of them, and sizes='any'.",
            stacklevel=3,
        )
