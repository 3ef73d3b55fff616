"""Biases that are computed at run time leave the op its int8 kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture.capture import Method


class Joined(nn.Module):
    """The bias of a projection is put together of three, as in BEiT; that of a convolution is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.qkv = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 24, bias=False)
        self.q, self.v = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("k", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.conv.weight, bias=self.q * self.v).relu()
        return F.linear(x.flatten(2).transpose(1, 2), self.qkv.weight, torch.cat((self.q, self.k, self.v)))


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_computed_biases_are_trained(method: Method) -> None:
    torch.manual_seed(0)
    model, x = Joined().train(), torch.randn(4, 3, 8, 8)
    prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (x,), method=method)
    assert fq.explain(prepared).int8_share == 1
    prepared(x).square().mean().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    prepared.eval()
    with torch.no_grad():
        trained = prepared(x)
        assert torch.allclose(fq.convert_fx(prepared)(x), trained, atol=1e-4)
        assert torch.allclose(trained, model.eval()(x), atol=0.1)


class FromData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return F.linear(x, self.main.weight, self.side(z).mean(0))


def test_a_bias_may_come_from_data() -> None:
    torch.manual_seed(0)
    model, args = FromData().eval(), (torch.randn(4, 8), torch.randn(3, 4))
    quantized = fq.quantize(model, [args] * 3)
    assert fq.explain(quantized).int8_share == 1
    assert torch.allclose(quantized(*args), model(*args), atol=0.05)
