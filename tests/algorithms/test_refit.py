"""Weights chosen again for the inputs as they are: nearer on other data; scales and what is not meant stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BALANCED, GPTQ, BiasCorrection, MeasuredBias, Refit
from fxquant.graph.region import preparation_of, regions
from fxquant.numerics.affine import sqnr_db

BEFORE = tuple(each for each in BALANCED if not isinstance(each, Refit))


class Widened(nn.Module):
    """A few channels become many, each is filtered by itself, and all become few again: noise has room, signal not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 48, 1), nn.ReLU6(), nn.Conv2d(48, 48, 3, groups=48), nn.ReLU6(), nn.Conv2d(48, 8, 1)
            )
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3))


def batches(seed: int, count: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.functional.interpolate(torch.randn(4, 3, 6, 6, generator=generator), size=(20, 20)) for _ in range(count)
    ]


@pytest.mark.parametrize("target", ["xint8", "npu", "qnnpack"])
def test_other_data_come_nearer_to_float(target: str) -> None:
    model, test = Widened().eval(), torch.cat(batches(1))
    found = []
    for algorithms in (BEFORE, BALANCED):
        options = {"target": target, "engine": "reference", "precision": "int8", "algorithms": algorithms}
        quantized = fq.quantize(model, batches(0), **options)
        assert fq.check_target(quantized, target) == ()
        with torch.no_grad():
            found.append(sqnr_db(model(test), quantized(test)))
    assert found[1] > found[0] + 0.2
    assert any("refit to what comes before" in row.reason for row in fq.explain(quantized))


def test_weights_with_a_scale_for_each_channel_stay() -> None:
    model = Widened().eval()
    options = {"target": "x86-vnni", "engine": "reference", "precision": "int8"}
    before, after = (fq.quantize(model, batches(0), algorithms=each, **options) for each in (BEFORE, BALANCED))
    assert all(torch.equal(value, after.state_dict()[key]) for key, value in before.state_dict().items())


def test_frozen_and_converted_agree_and_the_prepared_model_stays() -> None:
    prepared = fq.prepare_fx(
        Widened().eval(),
        fq.templates.calibration,
        (batches(0)[0],),
        target="npu",
        algorithms=(GPTQ(), BiasCorrection(), MeasuredBias(samples=8), Refit(samples=8)),
    )
    fq.calibrate(prepared, batches(0))
    before = {key: value.clone() for key, value in prepared.state_dict().items()}
    frozen, converted = fq.freeze(prepared), fq.convert_fx(prepared, engine="reference")
    again = fq.convert_fx(prepared, engine="reference")
    x = batches(2)[0]
    with torch.no_grad():
        assert sqnr_db(frozen(x), converted(x)) > 60
        assert torch.equal(again(x), converted(x))
    assert all(torch.equal(value, before[key]) for key, value in prepared.state_dict().items())
    assert all(preparation_of(region).float_tensors is None for _, region in regions(converted))


def test_weights_that_nothing_chose_are_refit_as_well() -> None:
    model, test = Widened().eval(), torch.cat(batches(1))
    found = []
    for algorithms in ((BiasCorrection(),), (BiasCorrection(), Refit())):
        options = {"target": "npu", "engine": "reference", "precision": "int8", "algorithms": algorithms}
        with torch.no_grad():
            found.append(sqnr_db(model(test), fq.quantize(model, batches(0), **options)(test)))
    assert found[1] > found[0]


def test_a_fixed_batch_size_and_one_call_do() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).relu().reshape(12, 8, -1).mean(2))

    model, x = Fixed().eval(), torch.randn(12, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    algorithms = (GPTQ(), BiasCorrection(), Refit(samples=8))
    quantized = fq.quantize(model, [x], target="npu", engine="reference", precision="int8", algorithms=algorithms)
    with torch.no_grad():
        assert sqnr_db(model(x), quantized(x)) > 20


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="Refit"):
        Refit(samples=0)
