"""Weights that code makes of parameters, in training: what is told of them, and how they train rounded."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, spectral_norm

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

MAPPING = fq.get_default_qat_qconfig_mapping()
X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Standardized(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        mean, std = weight.mean((1, 2, 3), keepdim=True), weight.std((1, 2, 3), keepdim=True)
        return (weight - mean) / (std + 1e-5)


class StandardizedConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = Standardized()(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def net(conv: type[nn.Conv2d]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 8, 3), nn.ReLU(), conv(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)).train()


def test_weights_that_forward_computes_are_told_of() -> None:
    with pytest.warns(UserWarning, match=r"^0 and 1 more will stay in float: the weight is computed from parameters"):
        fq.prepare_qat_fx(net(StandardizedConv2d), MAPPING, (X,))


def test_weights_that_the_input_makes_are_not() -> None:
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.first(x), self.last(x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fq.prepare_qat_fx(Dynamic().train(), MAPPING, (torch.randn(4, 8),))


def test_as_parametrizations_they_train_rounded_and_convert() -> None:
    reference, prepared = net(StandardizedConv2d), fq.prepare_qat_fx(net(nn.Conv2d), MAPPING, (X,))
    for path in ("0", "2"):
        parametrize.register_parametrization(prepared.get_submodule(path), "weight", Standardized())
    prepared(X).square().sum().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    assert 25 < sqnr_db(reference(X), prepared(X)) < 60
    converted = fq.convert_fx(prepared.eval())
    assert sqnr_db(prepared(X), converted(X)) > 60
    assert converted.state_dict()["0.weight"].dtype == torch.int8


NORMS: dict[str, Any] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "older": spectral_norm,
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_parametrization_of_the_float_model_is_told_of(norm: str) -> None:
    model = net(nn.Conv2d)
    NORMS[norm](model.get_submodule("2"))
    with pytest.warns(UserWarning, match=re.escape("2.weight: a plain parameter is trained")):
        prepared = fq.prepare_qat_fx(model, MAPPING, (X,))
    assert "2.weight" in dict(prepared.named_parameters())
