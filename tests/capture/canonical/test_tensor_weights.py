"""Weights that are buffers, plain tensors or constants, and no parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

CONSTANT = torch.linspace(-1, 1, 32).reshape(4, 8)


class Functional(nn.Module):
    def __init__(self, buffers: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        tensors = {"kernel": torch.randn(8, 3, 3, 3), "bias": torch.randn(8), "matrix": torch.randn(8, 4)}
        for name, tensor in tensors.items():
            if buffers:
                self.register_buffer(name, tensor)
            else:
                setattr(self, name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, self.kernel, self.bias)).mean((2, 3))
        return F.linear(F.linear(y, CONSTANT), self.matrix)


class Branching(Functional):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum() > -1e9 else -y


@pytest.mark.parametrize("buffers", [True, False], ids=["buffers", "plain"])
@pytest.mark.parametrize("method", ["symbolic", "export", "piecewise"])
def test_they_are_quantized(method: Any, buffers: bool, tmp_path: Path) -> None:
    model, x = Functional(buffers).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], method=method)
    assert sqnr_db(model(x), quantized(x)) > 25
    assert {row.path: row.status for row in fq.explain(quantized) if row.is_weighted} == {
        "kernel": "int8",
        "linear": "int8",
        "matrix": "int8",
    }
    assert isinstance(model.kernel, Tensor)
    loaded = fq.load(fq.save(quantized, tmp_path / "model"))
    assert torch.equal(loaded(x), quantized(x))
    trained = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    assert trained(x).shape == (2, 8)


@pytest.mark.parametrize("buffers", [True, False], ids=["buffers", "plain"])
def test_also_in_code_that_does_not_trace(buffers: bool, tmp_path: Path) -> None:
    model, x = Branching(buffers).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x])
    assert sqnr_db(model(x), quantized(x)) > 25
    assert {row.path for row in fq.explain(quantized) if row.status == "int8"} == {"kernel", "matrix"}
    loaded = fq.load(fq.save(quantized, tmp_path / "model"), Branching(buffers).eval())
    assert torch.equal(loaded(x), quantized(x))


class Odd(nn.Module):
    def __init__(self, changed: bool) -> None:
        super().__init__()
        self.changed = changed
        self.register_buffer("w", torch.eye(4))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.changed:
            self.w.mul_(0.5)
            return F.linear(x, self.w) + weight
        return F.linear(x, weight)


@pytest.mark.parametrize(("changed", "why"), [(True, "changed in place"), (False, "an input of the model")])
def test_what_stays_in_float_has_the_true_reason(changed: bool, why: str) -> None:
    example = (torch.randn(2, 4), torch.randn(4, 4) if not changed else torch.randn(4))
    with pytest.warns(UserWarning, match="nothing in Odd"):
        prepared = fq.prepare_fx(Odd(changed).eval(), fq.get_default_qconfig_mapping("x86"), example)
    assert why in next(row.reason for row in fq.explain(prepared) if row.kind == "linear")
