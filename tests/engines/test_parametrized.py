"""A parametrization of a converted model counts on every engine, and so does taking it out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fxquant as fq

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Negated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


@pytest.mark.parametrize("name", ["weight", "bias", "weight_scale"])
@pytest.mark.parametrize("engine", ["reference", "onednn", "native", "onnxruntime", "openvino"])
def test_what_is_taken_out_has_no_effect_any_more(engine: str, name: str) -> None:
    if engine in ("onnxruntime", "openvino"):
        pytest.importorskip(engine)
    torch.manual_seed(0)
    float_model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    model: Any = fq.quantize(float_model, [X], engine=engine)
    part = Negated() if name == "weight" else Halved()
    with torch.no_grad():
        before = model(X)
        parametrize.register_parametrization(model[2], name, part)
        changed = model(X)
        assert not torch.allclose(changed, before, atol=1e-2)
        assert torch.equal(copy.deepcopy(model)(X), changed)
        model[2].parametrizations[name][0] = nn.Identity()
        torch.testing.assert_close(model(X), before, atol=1e-3, rtol=0)
        model[2].parametrizations[name][0] = part
        torch.testing.assert_close(model(X), changed, atol=1e-3, rtol=0)
        parametrize.remove_parametrizations(model[2], name, leave_parametrized=False)
        torch.testing.assert_close(model(X), before, atol=1e-3, rtol=0)
