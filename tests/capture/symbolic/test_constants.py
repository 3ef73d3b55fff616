"""Tensors that forward makes, and writes what it computes into, are made anew in every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

Write = Callable[[nn.Module, Tensor], Tensor]


def item(layer: nn.Module, y: Tensor) -> Tensor:
    t = torch.zeros(4, 6, 8)
    for i in range(2):
        t[:, i] = layer(y[:, i])
    return t


def sum_up(layer: nn.Module, y: Tensor) -> Tensor:
    t = torch.ones(4, 6, 8)
    t += y
    t.add_(y)
    return layer(t)


def through_a_view(layer: nn.Module, y: Tensor) -> Tensor:
    t = torch.full((4, 6, 8), 2.0)
    t.view(24, 8).copy_(layer(y).flatten(0, 1))
    return t


def out(layer: nn.Module, y: Tensor) -> Tensor:
    t = torch.empty(4, 6, 8)
    torch.mul(y, 2, out=t)
    return layer(t)


class Net(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.write = nn.Linear(8, 8), nn.Linear(8, 8), write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.b, self.a(x))


@torch.no_grad()
@pytest.mark.parametrize("write", [item, sum_up, through_a_view, out])
def test_another_input_has_another_result(write: Write) -> None:
    model, x = Net(write).eval(), torch.randn(4, 6, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized = fq.convert_fx(prepared, engine="reference")
    first = quantized(x)
    kept = first.clone()
    for given in (x.flip(0), x):
        assert sqnr_db(model(given), quantized(given)) > 25
    assert torch.equal(first, kept)


def test_a_trace_says_why_not() -> None:
    with pytest.raises(fq.CaptureError, match="written into a tensor that does not come from an input"):
        fq.prepare_fx(Net(item).eval(), fq.get_default_qconfig_mapping(), (torch.randn(4, 6, 8),), method="symbolic")


def test_what_is_written_before_it_meets_an_input_is_a_constant() -> None:
    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(6, 1)
            mask[2:] = 1
            return self.b(self.a(x) * mask)

    model, x = Masked(item).eval(), torch.randn(4, 6, 8)
    quantized = fq.quantize(model, [x], engine="reference", method="symbolic")
    assert sqnr_db(model(x.flip(0)), quantized(x.flip(0))) > 25


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(8, 8).scatter_add(0, torch.arange(4)[:, None].expand(4, 8), self.fc(x))


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_an_expanded_one_is_loaded(method: Any) -> None:
    torch.manual_seed(0)
    model, x = Expanded().eval(), torch.randn(4, 8)
    mapping = fq.get_default_qconfig_mapping("x86")
    quantized = fq.convert_fx(fq.calibrate(fq.prepare_fx(model, mapping, (x,), method=method), [x]))
    fresh = fq.convert_fx(fq.prepare_fx(model, mapping, (x,), method=method))
    fresh.load_state_dict(quantized.state_dict())
    assert torch.equal(fresh(x), quantized(x))
