"""Linears whose activations are quantized at run time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.onednn.kernel_modules import ConvKernel, LinearKernel
from fxquant.engines.onednn.lower import lower
from fxquant.engines.onednn.support import supports
from fxquant.numerics.affine import sqnr_db

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


def on_kernels(reference: nn.Module) -> nn.Module:
    """A copy of a converted model, lowered."""
    lowered = copy.deepcopy(reference)
    lower(lowered)
    return lowered


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_dynamic_kernels(symmetric: bool) -> None:
    qconfig = fq.QConfig(
        activation=fq.Spec(dynamic=True, signed=symmetric, symmetric=symmetric, observer="minmax"),
        weight=fq.default_qconfig.weight,
    )
    model, x = (
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 8)).eval(),
        torch.randn(2, 4, 8, 8),
    )
    mapping = fq.QConfigMapping().set_global(qconfig)
    reference = fq.quantize(model, mode="dynamic", qconfig_mapping=mapping, example_inputs=(x,), engine="reference")
    lowered = on_kernels(reference)
    assert sum(isinstance(module, (ConvKernel, LinearKernel)) for module in lowered.modules()) == 2
    for scale in (0.01, 1.0, 100.0):
        assert sqnr_db(reference(x * scale), lowered(x * scale)) > 45


def test_one_dynamic_quantization_for_all_readers() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * self.b(x)

    quantized = fq.quantize(Heads().eval(), mode="dynamic", example_inputs=(torch.randn(2, 8),))
    assert sum("quantize_dynamic" in str(node.target) for node in quantized.graph.nodes) == 1
