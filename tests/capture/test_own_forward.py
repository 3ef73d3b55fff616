"""Modules of torch whose forward is the user's: put on the instance, or of a derived class. They do what that says."""

from __future__ import annotations

import types

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Tripled(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def scaled(self: nn.Conv2d, x: Tensor) -> Tensor:
    return 2 * nn.functional.conv2d(x, self.weight, self.bias) - 1


def network(act: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), act, nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()


@pytest.mark.parametrize("method", ["symbolic", "export", "piecewise"])
def test_a_forward_on_the_instance_is_captured(method: str) -> None:
    model = network(nn.SiLU())
    model[1].forward = lambda x: 3 * x
    model[2].forward = types.MethodType(scaled, model[2])
    model[3].forward = torch.abs
    quantized = fq.quantize(model, [X], method=method)  # type: ignore[arg-type]
    assert sqnr_db(model(X), quantized(X)) > 25


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_a_derived_class_that_is_not_traced_is_no_op_of_torch(engine: str) -> None:
    model = network(Tripled())
    config = fq.PrepareCustomConfig().set_non_traceable_module_classes([Tripled])
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (X,), prepare_custom_config=config)
    prepared(X)
    quantized = fq.convert_fx(prepared, engine=engine)
    for _ in range(3):
        assert sqnr_db(model(X), quantized(X)) > 25
