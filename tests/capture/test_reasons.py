"""Reasons as values: each has a text whose places can be filled, and a hint; errors and accounts carry both."""

from __future__ import annotations

import string

import pytest
import torch
from torch import Tensor, nn

from fxquant.capture import capture
from fxquant.capture.reasons import Cause
from fxquant.errors import CaptureError, Reason
from fxquant.graph.tree import tree_of


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.name)
def test_a_cause_becomes_a_reason(cause: Cause) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(cause.text) if name}
    why = cause.because(**{name.split("!")[0]: f"<{name}>" for name in names})
    assert all(name in why.text for name in names)
    assert "{" not in why.text
    assert why.hint == cause.hint


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum() > 0 else x


class Looped(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(sum((row for row in x), torch.zeros(4)))


class Measured(Branch):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * len(x)


@pytest.mark.parametrize(
    ("model", "cause"), [(Branch(), Cause.CONTROL_FLOW), (Looped(), Cause.ITERATED), (Measured(), Cause.LENGTH)]
)
def test_what_a_trace_refuses_is_in_the_error(model: nn.Module, cause: Cause) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(model, None, method="symbolic")
    assert caught.value.why == cause.because()
    assert cause.text in str(caught.value)
    assert caught.value.reason == caught.value.why.text


def test_what_is_left_in_float_has_the_hint_of_its_reason() -> None:
    (root,) = (left for left in tree_of(capture(Branch(), (torch.ones(2, 4),))).left if not left.path)
    assert root.reason.startswith(Cause.CONTROL_FLOW.text)
    assert root.hint == Cause.CONTROL_FLOW.hint


def test_an_error_without_a_reason_gives_its_message() -> None:
    assert CaptureError("it fails").why == Reason("it fails")
