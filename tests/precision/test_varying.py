"""What differs between samples: sums by parts, and answers whose constant hides that int8 lost the rest."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.precision.varying import Varying
from precision_models import Collapsing


class Kelvin(nn.Module):
    """A temperature: 300, and what the model makes of its input, which is hundreds of times less."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Collapsing()

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + 300.0


def hidden() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    data = [torch.cat((torch.randn(32, 8) * 1e-3, torch.rand(32, 1) * 30), 1) for _ in range(3)]
    return Kelvin().eval(), data


def test_a_collapse_behind_a_constant_is_found_and_mended() -> None:
    model, data = hidden()
    plain = fq.quantize(model, data, engine="reference", precision="int8")
    found = fq.check(model, plain, data)
    assert not found.passed and found.varying and found.outputs[0].varying
    assert "what differs between samples" in found.summary()
    with pytest.warns(UserWarning, match=r"what differs between samples.*Lifted inside.first"):
        made = fq.quantize(model, data, engine="reference")
    assert fq.check(model, made, data).passed
    with torch.no_grad():
        wanted, answer = (torch.cat([each(batch) for batch in data]) for each in (model, made))
    assert float((wanted - answer).square().sum() / (wanted - wanted.mean(0)).square().sum()) < 1e-2


def test_sums_by_parts_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    y = torch.randn(24, 3, 5, dtype=torch.float64) + 1e4
    z = y + 0.1 * torch.randn_like(y)
    found = Varying()
    for part in (slice(0, 5), slice(5, 6), slice(6, 24)):
        found.add(y[part], z[part])
    own, other = y - y.mean(0), z - z.mean(0)
    assert found.sqnr == pytest.approx(10 * math.log10(float(own.square().sum() / (z - y).square().sum())), abs=1e-6)
    assert found.cosine == pytest.approx(float((own * other).sum() / own.norm() / other.norm()), abs=1e-9)


@pytest.mark.parametrize(
    "parts",
    [
        [torch.ones(8, 3)],  # samples that are the same
        [torch.randn(2, 3)],  # too few
        [torch.randn(8, 3), torch.randn(8, 4)],  # of several sizes
        [torch.full((8, 3), math.nan)],
        [torch.randn(0, 3)],
        [torch.tensor(1.0)],
    ],
    ids=["alike", "few", "sizes", "nan", "empty", "number"],
)
def test_where_it_cannot_be_told_it_says_nothing(parts: list[Tensor]) -> None:
    found = Varying()
    for part in parts:
        found.add(part, part + 1)
    assert found.sqnr == math.inf
