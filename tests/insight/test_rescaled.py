"""Channels that algorithms scale or shift are the same function: no error is seen there."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import CrossLayerEqualization, SmoothQuant
from fxquant.graph.algorithm import Algorithm
from fxquant.insight.relax import Change, output_sqnr
from fxquant.insight.sides import set_side_by_side


class Normed(nn.Module):
    """A layer norm with a few large channels before a linear; `residual`: others take the norm's output as well."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.residual = residual
        with torch.no_grad():
            self.norm.weight[::8] *= 60

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        z = self.back(torch.relu(self.wide(y)))
        return z + y if self.residual else z


class Convs(nn.Module):
    """Channels of very different size between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.second = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)
        with torch.no_grad():
            self.first.weight *= torch.logspace(0, -2, 16).view(-1, 1, 1, 1)
            self.second.weight *= torch.logspace(-2, 0, 16).view(1, -1, 1, 1)
            self.bn.running_var *= 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.bn(self.first(x))))


SMOOTH: tuple[Algorithm, ...] = (SmoothQuant(strength=None),)
EQUAL: tuple[Algorithm, ...] = (CrossLayerEqualization(everywhere=True),)
CASES = {
    "norm": (lambda: Normed(False), (4, 10, 32), SMOOTH),
    "residual": (lambda: Normed(True), (4, 10, 32), SMOOTH),
    "strength": (lambda: Normed(False), (4, 10, 32), (SmoothQuant(strength=0.6),)),
    "convolutions": (Convs, (4, 3, 12, 12), EQUAL),
}


@pytest.mark.parametrize("name", CASES)
def test_scaled_channels_are_no_error(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape, algorithms = CASES[name]
    model, data = make().eval(), [torch.randn(*shape) for _ in range(3)]
    quantized = fq.quantize(model, data, algorithms=algorithms, engine="reference", precision="int8")
    assert any(word in str(fq.explain(quantized)) for word in ("smoothed by", "equalized with"))
    before = copy.deepcopy(model.state_dict())
    path = fq.save(quantized, tmp_path / "net.fq")
    for each in (quantized, fq.load(path, engine="reference")):
        found = fq.compare(model, each, data)
        assert min(row.sqnr for row in found) > 25
        assert min(row.own_sqnr for row in found if row.own_sqnr is not None) > 25
        assert min(row.sqnr for row in found.weights) > 30
        with torch.no_grad():  # the outputs are those of the model as it is
            noise = sum(float((model(x) - each(x)).square().sum()) for x in data)
            signal = sum(float(model(x).square().sum()) for x in data)
        assert found.output_sqnr == pytest.approx(10 * torch.tensor(signal / noise).log10().item(), abs=0.05)
        sides = set_side_by_side(model, each, data[0], {}, "test")
        base = output_sqnr(sides, data, Change())
        assert output_sqnr(sides, data, Change(exact="weights")) > base - 1
        assert output_sqnr(sides, data, Change(exact="activations")) > base - 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_channels_that_rounding_loses_are_errors() -> None:
    torch.manual_seed(0)
    model, data = Convs().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    spec = fq.Spec(bits=4, signed=True, symmetric=True, observer="minmax")  # one scale: small channels become zeros
    mapping = fq.QConfigMapping().set_global(fq.QConfig(fq.default_qconfig.activation, spec))
    quantized = fq.quantize(model, data, qconfig_mapping=mapping, algorithms=(), engine="reference")
    assert set_side_by_side(model, quantized, data[0], {}, "test").twin is not None
    found = fq.compare(model, quantized, data)
    assert found.weight("first").sqnr < 25 and found["first"].cosine < 1
    sides = set_side_by_side(model, quantized, data[0], {}, "test")
    assert sides.twin is sides.original


@pytest.mark.parametrize("target", ["npu", "xint8"])
def test_clips_that_moved_with_their_channels_are_no_error(target: str) -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 1), nn.ReLU6(), nn.Conv2d(8, 4, 1))
    model, data = nn.Sequential(*layers).eval(), [torch.randn(8, 3, 10, 10) for _ in range(2)]
    with torch.no_grad():
        for conv in (model[0], model[2]):
            conv.weight.mul_(9)
    quantized = fq.quantize(model, data, target=target, engine="reference", precision="int8")
    account = str(fq.explain(quantized))
    assert "clip at 6 as one at" in account and "centre_clips" in account
    found = fq.compare(model, quantized, data)
    assert min(row.sqnr for row in found) > 25
    assert min(row.own_sqnr for row in found if row.own_sqnr is not None) > 25
    assert min(row.sqnr for row in found.weights) > 30
