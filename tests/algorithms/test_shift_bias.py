"""Zeros of a bias stay zeros where code behind them may divide by their norm, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.algorithms import BALANCED, FAST, GPTQ, Algorithm, BiasCorrection, MeasuredBias
from fxquant.numerics.affine import sqnr_db


class Cosine(nn.Module):
    """Attention by the angles of queries and keys, as in Swin V2, on a window that is padded with zeros."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        with torch.no_grad():
            self.qkv.bias[16:32] = 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(F.pad(x, (0, 0, 0, 24))).chunk(3, -1)
        logits = 10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(1, 2)
        return self.out(logits.softmax(-1) @ v)[:, :8]


@pytest.mark.parametrize(
    "algorithms",
    [(BiasCorrection(),), (GPTQ(fine_features=64), BiasCorrection()), (BiasCorrection(), MeasuredBias())],
    ids=["correction", "gptq", "measured"],
)
def test_padded_keys_stay_zero(algorithms: tuple[Algorithm, ...]) -> None:
    model, x = Cosine().eval(), torch.randn(8, 8, 16) + 1
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86-vnni"), (x,), algorithms=algorithms)
    prepared(x)
    quantized = fq.convert_fx(prepared, engine="reference")
    bias = torch.as_tensor(quantized.qkv.bias)
    assert not bias[16:32].any()
    assert not torch.equal(bias[:16], model.qkv.bias[:16])
    assert sqnr_db(model(x), quantized(x)) > 25


@pytest.mark.parametrize("algorithms", [FAST, BALANCED], ids=["fast", "balanced"])
def test_zeros_before_plain_ops_take_means(algorithms: tuple[Algorithm, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    for index in (0, 2, 5):
        nn.init.zeros_(model[index].bias)
    x = torch.randn(16, 3, 10, 10) + 1
    prepared = fq.prepare_fx(model.eval(), {"": fq.get_default_qconfig("x86-vnni")}, (x,), algorithms=algorithms)
    prepared(x)
    quantized = fq.convert_fx(prepared, engine="reference")
    assert all(torch.as_tensor(quantized.get_submodule(path).bias).all() for path in ("0", "2", "5"))
