"""Copies of what modules hold: containers are copied and stay shared among each other, functions stay."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import nn

from fxquant.graph.own import copy_model, own_objects


def _owned(**held: Any) -> nn.Module:
    module = nn.Module()
    module.__dict__.update(held)
    own_objects(module, {}, buffers=True)
    return module


def test_what_is_shared_stays_shared() -> None:
    items: list[int] = [1]
    made: Any = _owned(a=items, b={"items": items})
    assert made.a is not items and made.a == [1] and made.b["items"] is made.a


def test_functions_and_classes_stay_and_partials_are_copied() -> None:
    held: list[int] = []
    made: Any = _owned(f=len, cls=dict, part=functools.partial(map, held))
    assert made.f is len and made.cls is dict
    assert made.part.func is map and made.part.args[0] is not held


def test_a_closure_over_a_list_is_the_copys_own() -> None:
    seen: list[int] = []

    def note(value: int) -> None:
        seen.append(value)

    made: Any = _owned(note=note)
    made.note(1)
    assert seen == [] and isinstance(made.note, types.FunctionType)


def test_what_calls_with_gradients_kept_is_the_copys_own() -> None:
    layer = nn.Linear(2, 2)
    layer.register_buffer("mean", torch.zeros(2))
    held: Any = layer
    held.last = [layer(torch.ones(2))]
    held.mean = held.mean + held.last[0]
    for made in (copy_model(held), _owned(last=held.last, mean=held.mean)):
        copied: Any = made
        assert torch.equal(copied.last[0], held.last[0]) and torch.equal(copied.mean, held.mean)
        assert copied.mean is not held.mean and copied.mean.grad_fn is None is copied.last[0].grad_fn


class Slotted:
    __slots__ = ("kept", "unset")

    def __init__(self) -> None:
        self.kept: list[object] = [torch.nn.functional.relu(torch.ones(1, requires_grad=True))]


def test_slots_are_the_copys_own() -> None:
    state = Slotted()
    made: Any = _owned(state=state)
    assert made.state is not state and made.state.kept is not state.kept and not hasattr(made.state, "unset")


def test_a_model_with_an_open_file_is_copied_around_it(tmp_path: Any) -> None:
    model: Any = nn.Linear(2, 2)
    with open(tmp_path / "log", "w") as file:
        model.log = file
        made: Any = copy_model(model)
        assert made.log is file and made.weight is not model.weight
