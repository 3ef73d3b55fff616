"""Linears whose activations are quantized on their own range, or not at all, in machine code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.graph.region import Region, engine_of, runner_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native.runner import NativeRunner

INT4 = fq.Spec(bits=4, granularity="per_group", group_size=16, observer="minmax")
FORMS: dict[str, dict[str, Any]] = {
    "dynamic": {"mode": "dynamic"},
    "int8": {"mode": "weight_only"},
    "int4": {"mode": "weight_only", "qconfig_mapping": {"": fq.QConfig(weight=INT4)}},
}


class Net(nn.Module):
    def __init__(self, inputs: int, inner: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, inner), nn.LayerNorm(inner)
        self.second, self.last = nn.Linear(inner, inner, bias=False), nn.Linear(inner, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(F.gelu(self.first(x)))
        return self.last(F.relu(self.second(h)) + h)  # type: ignore[no-any-return]


def both(form: str, model: nn.Module, x: Tensor) -> tuple[nn.Module, Region]:
    made = [
        fq.quantize(model.eval(), [x], engine=engine, precision="int8", **FORMS[form])
        for engine in ("reference", fq.Native(cache=None))
    ]
    assert isinstance(made[1], Region)
    return made[0], made[1]


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1, 7), (1,), (3, 2, 5)], ids=str)
def test_agrees_with_the_graph(form: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, 32)
    reference, native = both(form, Net(32, 48), x)
    assert engine_of(native) == "native"
    assert sqnr_db(reference(x), native(x)) > 45
    assert sqnr_db(reference(x[:1]), native(x[:1])) > (40 if form == "dynamic" else 80)


@torch.no_grad()
def test_a_range_is_that_of_the_batch() -> None:
    x = torch.randn(4, 3, 32) * torch.tensor([1.0, 4.0, 0.1, 2.0])[:, None, None]
    reference, native = both("dynamic", Net(32, 48), x)
    runner = runner_of(native)
    assert isinstance(runner, NativeRunner) and len(runner.programs) == 2  # of a sample, and of four
    assert sqnr_db(reference(x)[2], native(x)[2]) > 30


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [3, 5, 70, 100])
def test_rows_of_a_batch_are_taken_together(form: str, batch: int) -> None:
    x = torch.randn(batch, 32)
    reference, native = both(form, Net(32, 48), x)
    assert engine_of(native) == "native"
    assert native(x).shape == (batch, 5) and sqnr_db(reference(x), native(x)) > 40
    assert torch.equal(native(x), native(x))


class Mixes(Net):
    """What is done with one row depends on others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(0))


@torch.no_grad()
def test_rows_that_see_others_are_not_taken_together() -> None:
    x = torch.randn(6, 32)
    reference, native = both("int8", Mixes(32, 48), x)
    assert sqnr_db(reference(x), native(x)) > 40


@torch.no_grad()
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_has_no_range_gives_no_numbers(odd: float) -> None:
    x = torch.randn(1, 3, 32)
    reference, native = both("dynamic", Net(32, 48), x)
    x[0, 1, 2] = odd
    assert native(x).isnan().all()
    assert torch.equal(reference(x).isnan(), native(x).isnan())
    assert torch.equal(reference(x * 0).isnan(), native(x * 0).isnan())


@torch.no_grad()
def test_nothing_but_zeros() -> None:
    x = torch.zeros(1, 3, 32)
    reference, native = both("dynamic", Net(32, 48), torch.randn(1, 3, 32))
    assert sqnr_db(reference(x), native(x)) > 40
