"""Numbers that code draws from Python and numpy, and state that it keeps outside of modules: no graph holds them."""

from __future__ import annotations

import random
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import CaptureError

OWN = np.random.default_rng(3)
COUNTS = [0]


def unseeded() -> float:
    return float(np.random.default_rng().random())


def reseeded() -> float:
    torch.default_generator.seed()
    return float(torch.rand(()))


def from_global() -> float:
    return float(OWN.random())


def counted() -> float:
    COUNTS[0] += 1
    return float(COUNTS[0])


DRAWS = {"python": random.random, "numpy": np.random.rand, "unseeded": unseeded, "reseeded": reseeded}
OUTSIDE = {"global": from_global, "counted": counted}


class Net(nn.Module):
    draws: ClassVar = {**DRAWS, **OUTSIDE}

    def __init__(self, name: str, training: bool) -> None:
        super().__init__()
        self.a, self.b, self.name, self.when = nn.Linear(8, 8), nn.Linear(8, 4), name, training

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        if self.training == self.when:
            x = x * (1.0 + self.draws[self.name]())
        return self.b(x)


def values(model: nn.Module, x: Tensor) -> int:
    """How many different outputs six calls give."""
    with torch.no_grad():
        return len({float(model(x).sum()) for _ in range(6)})


@pytest.mark.parametrize("name", Net.draws)
def test_every_call_draws(name: str) -> None:
    torch.manual_seed(0)
    model, x = Net(name, training=False).eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    assert values(prepared, x) > 1
    quantized = fq.convert_fx(prepared)
    assert values(quantized, x) > 1
    assert fq.explain(quantized).int8_share == 1


@pytest.mark.parametrize("name", Net.draws)
def test_training_draws_and_is_quantized(name: str) -> None:
    torch.manual_seed(0)
    model, x = Net(name, training=True).train(), torch.randn(4, 8)
    states = random.getstate(), np.random.get_state()[1].tolist()
    prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (x,))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert values(prepared, x) > 1
    prepared.eval()
    assert values(prepared, x) == 1
    assert fq.explain(prepared).int8_share == 1


@pytest.mark.parametrize("method", ["symbolic", "export"])
@pytest.mark.parametrize("name", ["python", "numpy", "global", "counted"])
def test_a_graph_is_refused(name: str, method: str) -> None:
    model, x = Net(name, training=False).eval(), torch.randn(4, 8)
    with pytest.raises(CaptureError, match=r"random numbers are drawn by Python|a call changes what a global"):
        fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), method=method)  # type: ignore[arg-type]
