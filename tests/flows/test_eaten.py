"""Ranges that eat their signal are named from what calibration saw, and ordinary ones are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.table import as_engine
from fxquant.flows.decide import decide
from fxquant.flows.eaten import Eaten, find_eaten
from precision_models import collapsing
from zoo import ZOO


def eaten(model: nn.Module, data: list[Tensor]) -> list[Eaten]:
    prepared = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],)), data)
    return find_eaten(prepared, decide(prepared, engine=as_engine("onednn")))


def test_values_that_become_zero() -> None:
    model, data = collapsing()
    (found,) = eaten(model, data)
    assert found.tensor == "x" and "% of its values that are not zero become zero" in found.what
    with pytest.warns(UserWarning, match="ranges that eat their signal: x"):
        fq.quantize(model, data, precision="int8", engine="reference")


def test_a_conversion_that_decides_tells_once() -> None:
    model, data = collapsing()
    prepared = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],)), data)
    for engine in ("reference", "auto"):
        with pytest.warns(UserWarning, match="ranges that eat their signal: x") as told:
            fq.convert_fx(prepared, engine=engine)
        assert sum("eat their signal" in str(each.message) for each in told) == 1
    with pytest.warns(UserWarning, match="eat their signal") as told:
        fq.quantize(model, data, precision="int8", engine="reference")
    assert len(told) == 1


def test_what_was_lifted_is_not_named_again() -> None:
    model, data = collapsing()
    with pytest.warns(UserWarning, match="quantize: int8 is") as told:
        fq.quantize(model, data, engine="reference")
    assert not any("eat their signal" in str(each.message) for each in told)


class Joined(nn.Module):
    """Boxes and scores on one grid: what a detector's last concatenation does."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.scores = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
        self.mix = nn.Conv2d(8, 8, 1)
        with torch.no_grad():
            self.boxes.weight *= 100

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.mix(torch.cat((self.boxes(h), self.scores(h)), 1))


def test_tensors_on_one_grid_whose_ranges_differ() -> None:
    torch.manual_seed(0)
    found = eaten(Joined().eval(), [torch.randn(4, 3, 8, 8) for _ in range(2)])
    assert [each.tensor for each in found if "on one grid with boxes" in each.what] == ["scores"]


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vision_transformer", "unet", "densenet"])
def test_ordinary_models_have_none(name: str) -> None:
    torch.manual_seed(0)
    data = [ZOO[name].inputs()[0] for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not eaten(ZOO[name].build().eval(), data)
