"""Models that keep something of a call with gradients: a running mean, the last output, state with slots."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from state import state_of


class Slotted:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Any = None


class Keeping(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last, self.slotted = nn.Linear(4, 4), None, Slotted()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.last = self.slotted.last = y
        self.mean.mul_(0.9).add_(y.mean(0) * 0.1)
        return y * 2


@pytest.mark.parametrize("training", [False, True], ids=["ptq", "qat"])
def test_it_is_quantized_and_left_alone(training: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    model = Keeping().train(training)
    model(x)  # not in no_grad
    expected, before = model(x).detach(), state_of(model)
    if training:
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
    else:
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized = fq.convert_fx(prepared.eval())
    assert torch.allclose(quantized(x), expected, atol=0.1)
    assert state_of(model) == before
