"""`check`: outputs in all forms, every stage, engine and number of regions; what it says where it does not pass."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms.efforts import Effort
from fxquant.errors import CalibrationError, ConfigError, StageError
from fxquant.numerics.affine import sqnr_db
from precision_models import Branches, collapsing

Pair = namedtuple("Pair", "left right")


class Two(nn.Module):
    """Two floating outputs and an integer one, in a dict and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.left = nn.Linear(16, 4)
        self.right = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> dict[str, object]:
        h = torch.relu(self.body(x))
        return {"scores": self.left(h), "more": (self.right(h), h.argmax(1))}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Two().eval()


@pytest.fixture(scope="module")
def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(16, 8) for _ in range(3)]


def prepared(model: nn.Module, data: list[Tensor]) -> nn.Module:
    return fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],)), data)


def test_numbers_are_those_of_the_formula(model: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.convert_fx(prepared(model, data), engine="reference")
    found = fq.check(model, quantized, data)
    assert [row.name for row in found.outputs] == ["scores", "more[0]"]
    assert found.passed and found and found.batches == 3 and not found.advice
    with torch.no_grad():
        wanted = torch.cat([model(x)["scores"] for x in data])
        got = torch.cat([quantized(x)["scores"] for x in data])
    row = found.outputs[0]
    assert row.sqnr == pytest.approx(10 * math.log10(float(wanted.square().sum() / (got - wanted).square().sum())))
    assert row.cosine == pytest.approx(float((wanted * got).sum() / wanted.norm() / got.norm()))
    assert row.max_error == pytest.approx(float((wanted - got).abs().max()))
    assert found.sqnr == min(row.sqnr for row in found.outputs)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_every_engine_and_stage(model: nn.Module, data: list[Tensor], engine: str) -> None:
    ready = prepared(model, data)
    if engine == "native":
        pytest.importorskip("llvmlite")
    assert fq.check(model, ready, data).passed
    assert fq.check(model, fq.freeze(ready), data).passed
    assert fq.check(model, fq.convert_fx(ready, engine=engine), data).passed


def test_a_trained_model_and_one_of_several_regions(model: nn.Module, data: list[Tensor]) -> None:
    trained = fq.prepare_qat_fx(copy.deepcopy(model).train(), fq.get_default_qat_qconfig_mapping(), (data[0],))
    trained(data[0])
    assert fq.check(model, trained, data).passed
    branches = Branches().eval()
    assert fq.check(branches, fq.quantize(branches, data), data).passed


def test_both_models_and_the_data_stay_as_they_are(model: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.convert_fx(prepared(model, data), engine="onednn")
    float_model, kept = copy.deepcopy(model).train(), [x.clone() for x in data]
    fq.check(float_model, quantized, data)
    assert float_model.training
    assert all(torch.equal(one, other) for one, other in zip(kept, data, strict=True))


def test_labels_and_keywords_are_taken_as_calibrate_takes_them(model: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.convert_fx(prepared(model, data), engine="reference")
    labelled = [(x, torch.zeros(16)) for x in data]
    assert fq.check(model, quantized, iter(labelled)).sqnr == fq.check(model, quantized, data).sqnr
    assert fq.check(model, quantized, [{"x": x, "labels": None} for x in data]).passed


def test_integers_at_the_boundary(data: list[Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    custom = fq.PrepareCustomConfig().set_input_quantized_indexes([0]).set_output_quantized_indexes([0])
    ready = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],), custom)
    quantized = fq.convert_fx(fq.calibrate(ready, data), engine="reference")
    assert fq.check(model, quantized, data).passed


def test_a_collapse_is_seen_and_its_cause_named() -> None:
    model, data = collapsing()
    found = fq.check(model, prepared(model, data), data)
    assert not found.passed and found.sqnr < 10 and found.cosine < 0.95
    text = " ".join(found.advice)
    assert "eat their signal" in text and "x" in text and "fq.tune" in text
    assert "NOT PASSED" in str(found) and "NOT PASSED" in found._repr_html_()
    assert json.loads(found.to_json())["passed"] is False
    assert not fq.check(model, prepared(model, data), data, least=1000.0).passed


def test_values_that_are_not_finite_do_not_pass(model: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.convert_fx(prepared(model, data), engine="reference")

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = quantized

        def forward(self, x: Tensor) -> dict[str, object]:
            found = self.inner(x)
            found["scores"][0, 0] = math.nan
            return found

    found = fq.check(model, Broken(), data)
    assert not found.passed and found.outputs[0].broken == 3


def test_shapes_that_differ_are_left_out(data: list[Tensor]) -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.least = 0.0

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y[y[:, 0] > self.least]

    model = Picks().eval()
    quantized = fq.quantize(model, data)
    model.least = 1e9
    found = fq.check(model, quantized, data)
    assert not found.passed and not found.compared and math.isnan(found.sqnr)
    assert "shapes differ" in str(found) and "fq.tune" in found.advice[0]


def test_mistakes_are_named(model: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.convert_fx(prepared(model, data), engine="reference")
    with pytest.raises(StageError, match="the float model first"):
        fq.check(quantized, model, data)
    with pytest.raises(StageError, match="a plain Two"):
        fq.check(model, model, data)
    with pytest.raises(CalibrationError, match="no batches"):
        fq.check(model, quantized, [])
    with pytest.raises(CalibrationError, match="iterable of batches"):
        fq.check(model, quantized, data[0])
    with pytest.raises(ConfigError, match="least"):
        fq.check(model, quantized, data, least=math.nan)


class Sampling(nn.Module):
    """A decoder of a sample, as of a variational autoencoder that does not look whether it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.out = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x)
        sampled: Tensor = self.out(torch.randn_like(mean) + mean * 0.1)
        return sampled


@pytest.mark.parametrize("effort", ["fast", "balanced", "best"])
def test_models_that_draw_are_compared_by_the_same_draws(effort: Effort, data: list[Tensor]) -> None:
    torch.manual_seed(0)
    model = Sampling().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = fq.quantize(model, data, effort=effort)
    before = torch.get_rng_state()
    assert fq.check(model, quantized, data).sqnr > 25
    assert fq.compare(model, quantized, data).output_sqnr > 25
    assert torch.equal(torch.get_rng_state(), before)
    assert min(row.alone_quantized for row in fq.sensitivity(model, data)) > 20
    wanted, found = (torch.manual_seed(1) and each(data[0]) for each in (model, quantized))
    assert sqnr_db(wanted, found) > 22
