"""Values of any size: a scale is as small or large as float32 allows, and what cannot be is refused with a name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.errors import CalibrationError
from fxquant.numerics.affine import sqnr_db


def build(weight: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias.zero_()
        model[0].weight.mul_(weight)
    return model


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["reference", "onednn"])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("weight", "x"), [(1, 1e-7), (1, 1e-20), (1, 1e-30), (1e-20, 1), (1e-15, 1e-15), (1e-10, 1e30)]
)
def test_tiny_and_huge_values(weight: float, x: float, mode: Any, engine: Any) -> None:
    model, given = build(weight), torch.randn(2, 3, 8, 8) * x
    quantized = fq.quantize(model, [given], mode=mode, engine=engine)
    with torch.no_grad():
        for _ in range(4):
            expected, actual = model(given), quantized(given)
            largest = expected.abs().max()
            assert sqnr_db(expected / largest, actual / largest) > 30


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_zeros(mode: Any) -> None:
    model, zeros = build(0.0), torch.zeros(2, 3, 8, 8)
    quantized = fq.quantize(model, [zeros], mode=mode)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(quantized(zeros), torch.zeros(2, 8, 4, 4))


def test_calibration_names_where_it_saw_nan() -> None:
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(CalibrationError, match="holds NaN in calibration batch 1"):
        fq.quantize(build(1.0), [x], example_inputs=(torch.randn(2, 3, 8, 8),))


def test_a_tensor_with_infinity_stays_in_float_and_says_so() -> None:
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 0, 0] = torch.inf
    quantized = fq.quantize(build(1.0), [x], example_inputs=(torch.randn(2, 3, 8, 8),))
    assert any("mask" in row.reason and row.status == "float" for row in fq.explain(quantized).rows)
