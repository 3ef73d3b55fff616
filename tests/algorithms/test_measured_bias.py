"""Biases of a few bits take back what those before them lost."""

from __future__ import annotations

import copy

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
        for algorithms in (BEFORE, (*BEFORE, MeasuredBias()))
    )
    assert after > before + 1.0


def test_other_biases_stay_and_copies_give_the_same_bits() -> None:
    model = network()
    one, other = (quantized(model, "npu", *algorithms)(TEST) for algorithms in (BEFORE, (*BEFORE, MeasuredBias())))
    assert torch.equal(one, other)
    rules = {"": fq.get_default_qconfig("xint8")}
    prepared = fq.prepare_fx(model, rules, (TEST,), target="xint8", algorithms=(*BEFORE, MeasuredBias()))
    fq.calibrate(prepared, DATA)
    results = [fq.convert_fx(each, engine="reference")(TEST) for each in (prepared, copy.deepcopy(prepared))]
    assert torch.equal(*results)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="positive whole number"):
        MeasuredBias(samples=0)
