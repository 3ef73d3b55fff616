"""Linears with integer weights and float activations."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines.onednn.lower import lower
from fxquant.engines.onednn.support import supports
from fxquant.engines.onednn.weight_only_linear import WeightOnlyLinear
from fxquant.numerics.affine import sqnr_db

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


def on_kernels(reference: nn.Module) -> nn.Module:
    """A copy of a converted model, lowered."""
    lowered = copy.deepcopy(reference)
    lower(lowered)
    return lowered


@pytest.mark.parametrize("bits", [8, 4], ids="int{}".format)
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weight_only_kernels(bits: int, rows: int, dtype: torch.dtype) -> None:
    qconfig = fq.weight_only_qconfig if bits == 8 else fq.int4_weight_only_qconfig
    model, x = nn.Sequential(nn.Linear(128, 64)).eval().to(dtype), torch.randn(rows, 128, dtype=dtype)
    mapping = fq.QConfigMapping().set_global(qconfig)
    reference = fq.quantize(model, mode="weight_only", qconfig_mapping=mapping, example_inputs=(x,), engine="reference")
    lowered = on_kernels(reference)
    assert any(isinstance(module, WeightOnlyLinear) for module in lowered.modules())
    assert sqnr_db(reference(x), lowered(x)) > 40  # few rows are computed in bfloat16
    assert torch.equal(pickle.loads(pickle.dumps(lowered))(x), lowered(x))


@pytest.mark.parametrize("width", [10, 24, 33, 96], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_weight_only_kernels_of_odd_sizes(rows: int, width: int) -> None:
    model, x = nn.Sequential(nn.Linear(24, width), nn.Linear(width, 10)).eval(), torch.randn(rows, 24)
    quantized = fq.quantize(model, mode="weight_only", example_inputs=(x,))
    assert sqnr_db(model(x), quantized(x)) > 30
