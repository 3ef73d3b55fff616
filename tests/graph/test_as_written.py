"""The code of a region's module, for calls that its graph does not cover."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq


class Positions(nn.Embedding):
    def forward(self, shape: torch.Size) -> Tensor:  # type: ignore[override]
        return super().forward(torch.arange(shape[1]) + self.first)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, times: float) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).view(x.shape) * times


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, turned: bool, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t() if turned else self.weight)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.turned, self.own = nn.Embedding(20, 8), Positions(9, 8), Turned(), Own()
        self.positions.first = 1

    def forward(self, ids: Tensor, **options: bool) -> Tensor:
        x = self.words(ids) + self.positions(ids.shape)
        x = self.own(False, self.turned(x, 2.0))
        return x.relu() if options.get("relu") else x


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(ids)
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize("engine", ["reference", "onednn"])
@torch.no_grad()
def test_modules_that_stock_ones_stand_for_are_the_users_in_their_code(engine: str) -> None:
    torch.manual_seed(0)
    model = Translator().eval()
    ids = torch.randint(20, (2, 5))
    quantized = fq.quantize(model, [(ids,)], engine=engine)
    covered = quantized.encoder(ids)
    expected = model.encoder(ids, relu=True)
    for each in (quantized, copy.deepcopy(quantized)):
        found = each.encoder(ids, relu=True)
        assert (found - expected).square().sum() < 1e-2 * expected.square().sum()
    assert (quantized.encoder(ids) == covered).all()
