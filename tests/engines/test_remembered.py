"""Models that write to their own tensors: only calls of the user's count, not those by which an engine is tried."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.native.apply import has_native

ENGINES = ["onednn", *(["native", "auto"] if has_native() else [])]


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.5).add_(x)
        return self.fc(self.mean) + self.calls


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).relu()))


def lives(prepared: nn.Module, engine: str, x: Tensor, training: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    model = fq.convert_fx(copy.deepcopy(prepared), engine=engine)
    if training:
        model(x)
        model.train()
    with torch.no_grad():
        return [model(x) for _ in range(3)], dict(model.named_buffers())


@pytest.mark.filterwarnings("ignore:.*is left out")
@pytest.mark.parametrize("kind", [Remembers, Counts])
@pytest.mark.parametrize("engine", ENGINES)
def test_only_calls_of_the_user_are_remembered(engine: str, kind: type[nn.Module]) -> None:
    if kind is Counts and engine == "auto":
        pytest.skip("it is in eval mode when engines are tried")
    model, x = kind().eval(), torch.randn(4, 8)
    # one target: engines by themselves ask for other weights than the reference on CPUs without VNNI
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,), target="x86")
    prepared(x)
    expected, state = lives(prepared, "reference", x, kind is Counts)
    found, after = lives(prepared, engine, x, kind is Counts)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(expected, found, strict=True))
    assert all(torch.allclose(after[name].float(), state[name].float()) for name in state)
