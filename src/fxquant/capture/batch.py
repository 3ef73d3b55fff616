"""Whether a captured graph holds for other calls than the example's: more rows, longer lists, inputs left out.

A trace that was given the example's sizes may hold for just these. The inputs are changed in the ways in which calls
differ in use, one at a time. Where the model itself takes that and the graph does not, the graph fixes too much.

The answer must be the same every time. So memory that nobody wrote has a fixed content in these runs: doubled offsets
are no longer sorted, and an embedding bag then leaves rows unwritten, which compare as whatever was there.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fxquant.capture.recording import Recording
from fxquant.capture.run_untraced import difference, evaluating, trying

T = TypeVar("T")

_MOST_TRIES = 6  # each costs two runs of the model
Example = tuple[tuple[Any, ...], dict[str, Any]]


def batch_size(values: object) -> int | None:
    """Return the first size of the first tensor; None if there is none."""
    first = next((leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)), None)
    return int(first.shape[0]) if first is not None and first.dim() else None


def double_batch(values: T) -> T:
    """Return the same values with tensors twice as long, where their first size is the batch size."""
    size = batch_size(values)
    made: T = values if size is None else _double(values, size, set())
    return made


def larger(values: Example, fixed: Collection[int] = ()) -> Iterator[Example]:
    """Return the same call with twice the batch.

    Tensors of that first size and lists of that length are twice as long: all, or one of them. `fixed` are the ids of
    lists that stay as long as they are.
    """
    sizes = [int(t.shape[0]) for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor) and t.dim()]
    lists = [found for found in _lists(values) if id(found) not in fixed]
    for size in dict.fromkeys((*(len(found) for found in lists), *sizes[:1])):
        which = [id(found) for found in lists if len(found) == size]
        choices = [set(which), set[int](), *({each} for each in which)] if len(which) > 1 else [set(which), set()]
        for chosen in choices if which else [set[int]()]:
            if chosen or size in sizes:
                yield _double(values, size, chosen)


def _lists(values: object) -> Iterator[list[object]]:
    if isinstance(values, list) and any(not isinstance(item, (int, float, str)) for item in values):
        yield values
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    for value in inner:
        yield from _lists(value)


def _double(value: Any, size: int, lists: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.cat([value, value]) if value.dim() and value.shape[0] == size else value
    if id(value) in lists:
        return [*value, *value]
    items, spec = pytree.tree_flatten(value, is_leaf=lambda item: item is not value)
    return value if spec.is_leaf() else pytree.tree_unflatten([_double(item, size, lists) for item in items], spec)


def fewer(model: nn.Module, values: Example) -> Iterator[Example]:
    """Return the same call without one of its optional arguments, or without one entry of a dict."""
    args, kwargs = values
    for index, parameter in enumerate(inspect.signature(model.forward).parameters.values()):
        if parameter.default is parameter.empty:
            continue
        if index < len(args):
            yield args[:index], kwargs
        elif parameter.name in kwargs:
            yield args, {name: value for name, value in kwargs.items() if name != parameter.name}
    for place, value in enumerate((*args, *kwargs.values())):
        for key in value if type(value) is dict else ():
            less = {name: item for name, item in value.items() if name != key}
            changed = [less if at == place else each for at, each in enumerate((*args, *kwargs.values()))]
            yield tuple(changed[: len(args)]), dict(zip(kwargs, changed[len(args) :], strict=True))


def fixes_batch(recording: Recording, captured: nn.Module) -> bool:
    """Tell whether the model takes a larger batch and what was captured of it does not."""
    values = (recording.args, recording.kwargs)
    with _repeatable():
        return _fails(recording, captured, larger(values, _unread(recording, values)))


def fixes_inputs(recording: Recording, captured: nn.Module) -> bool:
    """Tell whether the model, in eval mode, takes fewer inputs (no labels), and what was captured of it does not."""
    with _repeatable():
        return _fails(recording, captured, fewer(recording.model, (recording.args, recording.kwargs)))


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Have torch fill memory that is asked for and not written, so that what is read there is the same in every run."""
    mode = torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode(mode or "warn")  # the warnings are kept back, see `trying`
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _unread(recording: Recording, values: Example) -> set[int]:
    """Return the lists (their ids) of which the model reads all items and no further one: one for each table, say.

    Such a model takes a longer list, as `zip` does, and nobody means anything by it. A list of which it reads nothing
    may go along with the batch, and is none of these.
    """
    found: set[int] = set()
    lists = [*itertools.islice(_lists(values), _MOST_TRIES)]
    if not lists:
        return found
    model = recording.clone

    def answers_alike(old: list[object], new: list[object]) -> bool:
        args, kwargs = _replace(values, old, new)
        with contextlib.suppress(Exception):
            return difference(recording.run(model, args, kwargs), recording.evaluated_outputs()) is None
        return False  # most models fail, as they read an object that is no tensor, or miss one

    with trying(), evaluating(model):
        for each in lists:
            if answers_alike(each, [*each, object()]) and not answers_alike(each, each[:-1]):
                found.add(id(each))
    return found


def _replace(value: Any, old: object, new: object) -> Any:
    return pytree.tree_map(lambda item: new if item is old else item, value, is_leaf=lambda item: item is old)


def _fails(recording: Recording, captured: nn.Module, calls: Iterator[Example]) -> bool:
    reference = recording.clone
    with trying(), evaluating(reference), evaluating(captured):
        for args, kwargs in itertools.islice(calls, _MOST_TRIES):
            try:
                theirs = recording.run(reference, args, kwargs)
            except Exception:
                continue  # the model itself does not take that
            try:
                if difference(recording.run(captured, args, kwargs), theirs) is not None:
                    return True
            except Exception:
                return True
    return False
