"""The example run is made once, and rungs hand on what they found: counted by calls of forward, and by traces."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import attempt, capture
from fxquant.capture.recording import Recording
from fxquant.errors import CaptureError
from fxquant.numerics.affine import sqnr_db

RUNS = itertools.count()  # of a class that no snapshot puts back


def runs_since(before: int) -> int:
    return next(RUNS) - before - 1


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:  # not while it is traced
            next(RUNS)
        return self.head(x)


class Branch(Counted):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum() > 0 else -y


class Fails(Counted):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise ValueError("no")


X = torch.ones(2, 4)


def test_outputs_are_computed_once() -> None:
    model = Counted().eval()
    recording, before = Recording(model, (X,), {}), next(RUNS)
    assert torch.equal(recording.reference().outputs, model.head(X))
    assert recording.reference().outputs is recording.evaluated_outputs()
    assert runs_since(before) == 1


def test_a_failure_is_kept() -> None:
    recording, before = Recording(Fails().eval(), (X,), {}), next(RUNS)
    for _ in range(2):
        with pytest.raises(CaptureError, match="fails on the example inputs: no"):
            recording.reference()
    assert runs_since(before) == 1


@pytest.mark.parametrize(("cls", "runs", "traces"), [(Counted, 1, 1), (Branch, 2, 2)])
def test_a_capture_runs_and_traces_the_root_no_more_than_it_needs(
    cls: type[nn.Module], runs: int, traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch on data takes the watched run and the one that compares, a trace without the example and one with it."""
    traced: list[type] = []

    def trace(request: Any, tree: nn.Module, **settings: bool) -> Any:
        traced.append(type(tree))
        return original(request, tree, **settings)

    original = attempt.trace
    monkeypatch.setattr(attempt, "trace", trace)
    model, before = cls().eval(), next(RUNS)
    capture(model, (X,))
    assert runs_since(before) == runs
    assert traced.count(cls) == traces


def test_a_part_that_is_quantized_is_watched_from_outside() -> None:
    """Hooks inside of it would keep it from its kernels, and be told of as hooks of the user's."""
    torch.manual_seed(0)
    part = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval()
    x = torch.randn(4, 3, 8, 8)
    whole = nn.Sequential(fq.quantize(part, [x]), nn.Linear(4, 4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = fq.quantize(whole, [x])
    assert sqnr_db(whole(x), quantized(x)) > 30
