"""Weights that forward computes from parameters alone are weights like any other, in eval mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import capture
from fxquant.numerics.affine import sqnr_db


class StandardizedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        std = self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (self.weight - mean) / (std + 1e-5), self.bias, self.stride, self.padding)


class ConcatenatedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8, bias=False)
        self.first, self.last = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(input=x.mean((2, 3)), weight=self.fc.weight, bias=torch.cat([self.first, self.last]))


class AlsoRead(ConcatenatedBias):
    """The weight that a scaled copy is made of is used as it is, too."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean((2, 3))
        return F.linear(x, self.fc.weight * 2.0) + self.fc(x)


class BuiltInPlace(nn.Module):
    """A bias of which a part is cleared, as Swin V2 has it, and one that is read again after more is written."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.fc = nn.Linear(8, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias.clone()
        length = bias.numel() // 3
        bias[length : 2 * length].zero_()
        x = F.linear(x.mean((2, 3)), self.qkv.weight, bias)
        bias = self.fc.bias.clone()
        bias[0:3] = bias[0:3] * 2 + 1
        x = F.linear(x, self.fc.weight, bias)
        bias.mul_(3.0)
        return x * bias


class ReadTwice(nn.Module):
    """A computed weight that another op reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fc.weight * 2.0
        return F.linear(x.mean((2, 3)), weight, self.fc.bias) + weight.sum()


def model(part: type[nn.Module] | None = None) -> nn.Module:
    torch.manual_seed(0)
    conv = StandardizedConv(3, 8, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), ConcatenatedBias() if part is None else part()).eval()


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("method", ["symbolic", "export"])
@pytest.mark.parametrize("part", [ConcatenatedBias, AlsoRead, BuiltInPlace, ReadTwice])
def test_computed_weights_are_quantized(part: type[nn.Module], method: str) -> None:
    net, x = model(part), torch.randn(2, 3, 8, 8)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    torch.testing.assert_close(capture(net, (x,), method=method)(x), net(x))
    quantized = fq.quantize(net, [x], method=method, engine="reference")
    assert sqnr_db(net(x), quantized(x)) > 25
    assert fq.explain(quantized).int8_share == 1.0
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_the_value_takes_the_place_of_the_parameter() -> None:
    region = capture(model(), (torch.randn(2, 3, 8, 8),))
    assert type(region.get_submodule("0")) is nn.Conv2d
    assert region.get_submodule("2.fc").bias is not None
    calls = [node.target for node in region.graph.nodes if node.op == "call_module"]
    assert calls == ["0", "1", "2.fc"]


def test_in_train_mode_weights_stay_computed() -> None:
    region = capture(model().train(), (torch.randn(2, 3, 8, 8),))
    assert F.conv2d in {node.target for node in region.graph.nodes}


def test_what_was_built_in_place_is_gone_with_its_last_reader() -> None:
    region = capture(nn.Sequential(StandardizedConv(3, 8, 3), BuiltInPlace()).eval(), (torch.randn(2, 3, 8, 8),))
    calls = [node.target for node in region.graph.nodes if node.op == "call_module"]
    assert calls[:2] == ["0", "1.qkv"]
    assert not region.graph.find_nodes(op="get_attr", target="1.qkv.bias")
