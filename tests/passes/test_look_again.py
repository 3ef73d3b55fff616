"""Graphs run again on the inputs that calibration kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db


class Options(nn.Module):
    """`scaled` decides what is computed; the example gives another value than the default."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scaled: bool | None = None) -> Tensor:
        if scaled is None:
            raise ValueError("say whether")
        return self.last(torch.relu(self.first(self.norm(x))) * (2.0 if scaled else 1.0))


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_plain_arguments_have_the_values_of_the_capture(effort: str) -> None:
    torch.manual_seed(0)
    model, batch = Options().eval(), {"x": torch.randn(16, 8), "scaled": False}
    quantized = fq.quantize(model, [batch, batch], effort=effort, engine="reference")
    with torch.no_grad():
        assert sqnr_db(model(**batch), quantized(**batch)) > 30


class Turned(nn.Module):
    """Is handed a pair of tensors, for which it has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        assert turn is not None
        y = self.first(self.norm(x))
        return self.last(y * turn[0] + y.roll(1, -1) * turn[1])


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_containers_are_not_taken_for_their_defaults(effort: str) -> None:
    torch.manual_seed(0)
    model = Turned().eval()
    batch = {"x": torch.randn(16, 8), "turn": (torch.rand(16, 8), torch.rand(16, 8))}
    quantized = fq.quantize(model, [batch, batch], effort=effort, engine="reference")
    with torch.no_grad():
        assert sqnr_db(model(**batch), quantized(**batch)) > 30
