"""Tensors of a converted model that others take the place of: engines see them as the reference does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fxquant as fq
from fxquant.engines.native.apply import has_native


class Net(nn.Module):
    """Weighted ops, and a tensor that is an attribute and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.shift = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), torch.full((8, 1, 1), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu() + self.shift)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def parameter(model: Any) -> None:
    model.last.bias = nn.Parameter(model.last.bias.detach() * 2)


def parametrized(model: Any) -> None:
    parametrize.register_parametrization(model.last, "bias", Doubled())


def attribute(model: Any) -> None:
    doubled = model.last.bias.detach() * 2
    del model.last.bias
    model.last.bias = doubled


def nothing(model: Any) -> None:
    model.last.bias = None


def scales(model: Any) -> None:
    model.last.weight_scale = nn.Parameter(model.last.weight_scale.detach() * 2)


def assigned(model: Any) -> None:
    model.shift = torch.full((8, 1, 1), 0.5)


def written(model: Any) -> None:
    model.shift.mul_(0.25)


CHANGES: tuple[Callable[[Any], None], ...] = (
    *(parameter, parametrized, attribute, nothing, scales, assigned, written),
)


@pytest.fixture(scope="module")
def prepared() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    # one target: oneDNN by itself asks for other weights than the reference on CPUs without VNNI
    model = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (x,), target="x86")
    model(x)
    return model, x


@pytest.mark.broad
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("engine", ["onednn", *(["native"] if has_native() else [])])
def test_what_takes_the_place_of_a_tensor_counts(
    prepared: tuple[nn.Module, Tensor], engine: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    model, x = prepared
    kept: Any = fq.Native(cache=tmp_path) if engine == "native" else engine
    expected = fq.convert_fx(model, engine="reference")
    before = expected(x)
    change(expected)
    for _ in range(2):  # the second time, code is kept that was made for the first
        found = fq.convert_fx(model, engine=kept)
        for _ in range(3):
            assert torch.allclose(found(x), before, atol=1e-4)
        change(found)
        for _ in range(3):
            assert torch.allclose(found(x), expected(x), atol=1e-4)
            assert not torch.allclose(found(x), before, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("early", [True, False], ids=["before the first call", "after calls"])
@pytest.mark.parametrize("engine", ["reference", "onednn", "native", "onnxruntime", "openvino"])
def test_a_forward_on_a_converted_model_is_what_runs(
    prepared: tuple[nn.Module, Tensor], engine: str, early: bool
) -> None:
    pytest.importorskip(
        {"native": "llvmlite", "onnxruntime": "onnxruntime", "openvino": "openvino"}.get(engine, "torch")
    )
    model, x = prepared
    found: Any = fq.convert_fx(model, engine=engine)
    before = fq.convert_fx(model, engine="reference")(x)
    for _ in range(0 if early else 3):
        assert torch.allclose(found(x), before, atol=1e-4)
    found.forward = lambda x: x + 1
    for _ in range(2):
        assert torch.equal(found(x), x + 1)
    found.last.register_forward_hook(lambda module, args, output: None).remove()  # a look at hooks leaves it there
    assert torch.equal(found(x), x + 1)
    del found.forward
    assert torch.allclose(found(x), before, atol=1e-4)
