"""Random numbers that forward draws by itself are drawn in every call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq

Write = Callable[[nn.Module, Tensor], Tensor]


def item(layer: nn.Module, y: Tensor) -> Tensor:
    t = torch.zeros(4, 6, 8)
    for i in range(2):
        t[:, i] = layer(y[:, i])
    return t


class Net(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.write = nn.Linear(8, 8), nn.Linear(8, 8), write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.b, self.a(x))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda y: y + torch.rand(8),
    "permutation": lambda y: y[..., torch.randperm(8)],
    "in place": lambda y: y + torch.empty(8).uniform_().mul(2),
    "mask": lambda y: y * torch.bernoulli(torch.full((6, 8), 0.5)),
    "like": lambda y: y + torch.randn_like(y),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_are_drawn_in_every_call(draw: str) -> None:
    model, x = Net(lambda layer, y: layer(DRAWS[draw](y))).eval(), torch.randn(4, 6, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized = fq.convert_fx(prepared, engine="reference")
    assert not torch.equal(quantized(x), quantized(x))


def test_random_numbers_that_nothing_uses_do_not_matter() -> None:
    class Skips(Net):
        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.rand([])
            return self.b(self.a(x)) if not self.training else self.b(x) * (drawn < 0.5)

    fq.prepare_fx(Skips(item).eval(), fq.get_default_qconfig_mapping(), (torch.randn(4, 8),), method="symbolic")
