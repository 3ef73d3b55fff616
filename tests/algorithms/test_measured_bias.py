"""Biases take back what rounding before them moved, if that helps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, CrossLayerEqualization, MeasuredBias
from fxquant.numerics.affine import sqnr_db

DATA = [torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
TEST = torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(9))
BEFORE = (CrossLayerEqualization(), BiasCorrection())


def network() -> nn.Module:
    """Biases of which some are twenty times as large as others, in front of a mean over the picture."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU6(), nn.Conv2d(32, 32, 1), nn.ReLU6()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
    with torch.no_grad():
        for layer in model:
            if hasattr(layer, "bias"):
                layer.bias.copy_(torch.randn_like(layer.bias) * torch.linspace(-2, 1, len(layer.bias)).exp())
    return model


def quantized(model: nn.Module, target: str, *algorithms: fq.algorithms.Algorithm) -> nn.Module:
    return fq.quantize(model, DATA, target=target, algorithms=algorithms, engine="reference", precision="int8")


def test_means_come_closer() -> None:
    model = network()
    before, after = (
        sqnr_db(model(TEST), quantized(model, "xint8", *algorithms)(TEST))
        for algorithms in ((BiasCorrection(),), (BiasCorrection(), MeasuredBias()))
    )
    assert after > before + 1.0


def long_tailed() -> nn.Module:
    """Channels behind a silu that are small nearly everywhere, on one grid with a few large values."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 1)]
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        model[0].weight.mul_(0.1)
        model[0].weight[0] = 30.0
        model[0].bias.copy_(torch.linspace(-60.0, -0.5, 8))
    return model


def test_what_activations_lose_in_the_mean_comes_back() -> None:
    model = long_tailed()
    before, after = (
        sqnr_db(model(TEST), quantized(model, "x86-vnni", *algorithms)(TEST))
        for algorithms in ((BiasCorrection(),), (BiasCorrection(), MeasuredBias()))
    )
    assert after > before + 1.0


class Padded(nn.Module):
    """Rows of which the last three quarters are of another kind, and do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))[:, :4]


def test_all_stays_where_the_outputs_come_no_nearer() -> None:
    torch.manual_seed(0)
    model = Padded().eval()
    rows = torch.cat((torch.rand(16, 4, 6), torch.full((16, 12, 6), 90.03)), 1)
    one, other = (
        fq.quantize(model, [rows], target="x86-vnni", algorithms=each, engine="reference", precision="int8")(rows)
        for each in ((BiasCorrection(),), (BiasCorrection(), MeasuredBias()))
    )
    assert torch.equal(one, other) or sqnr_db(model(rows), other) > sqnr_db(model(rows), one)


def test_copies_give_the_same_bits() -> None:
    model = network()
    rules = {"": fq.get_default_qconfig("xint8")}
    prepared = fq.prepare_fx(model, rules, (TEST,), target="xint8", algorithms=(*BEFORE, MeasuredBias()))
    fq.calibrate(prepared, DATA)
    results = [fq.convert_fx(each, engine="reference")(TEST) for each in (prepared, copy.deepcopy(prepared))]
    assert torch.equal(*results)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="positive whole number"):
        MeasuredBias(samples=0)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Conv2d(3, 8, 3), (3, 9, 9)), (lambda: nn.Conv1d(3, 8, 3), (3, 9))],
    ids=["conv2d", "conv1d"],
)
def test_samples_without_a_batch(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(make(), nn.ReLU()).eval(), torch.randn(shape)
    quantized = fq.quantize(model, [x], example_inputs=(x,), engine="reference", effort="balanced")
    assert sqnr_db(model(x), quantized(x)) > 30


def test_one_sample_is_not_learned_by_heart() -> None:
    """Its error would vanish, and `quantize` would see nothing of what other samples lose."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    x, others = torch.randn(1, 64), torch.randn(256, 64)
    fast, balanced = (
        fq.quantize(model, [x], effort=each, precision="int8", engine="reference") for each in ("fast", "balanced")
    )
    assert sqnr_db(model(x), balanced(x)) < 60
    assert sqnr_db(model(others), balanced(others)) > sqnr_db(model(others), fast(others)) - 0.2
