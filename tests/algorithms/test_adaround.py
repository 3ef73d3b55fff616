"""AdaRound loses less at the output than rounding to the nearest, and never more than GPTQ on the data it saw."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import GPTQ, AdaRound, BiasCorrection
from fxquant.algorithms.adaround import learn_rounding
from fxquant.algorithms.round_by import cost
from fxquant.numerics.affine import dequantize, fake_quantize, sqnr_db

QUICK = AdaRound(steps=120)
GRIDS = {
    "int4": fq.Spec(bits=4, granularity="per_channel", observer="minmax"),
    "int4_groups": fq.Spec(bits=4, granularity="per_group", group_size=8, observer="minmax"),
    "uint4": fq.Spec(bits=4, signed=False, symmetric=False, granularity="per_channel", observer="minmax"),
    "pow2": fq.Spec(bits=4, observer="minmax", scale="pow2"),
}


def correlated(*shape: int, seed: int = 0) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).transpose(1, -1)
    mixed = torch.randn(shape[1], shape[1], generator=torch.Generator().manual_seed(99))
    return (0.3 * x + x @ mixed / shape[1] ** 0.5 + 1).transpose(1, -1)


def outputs(model: nn.Module, x: Tensor, test: Tensor, weight: fq.Spec, mode: str, *algorithms: object) -> float:
    activations = {"static": fq.Spec(), "dynamic": fq.Spec(dynamic=True), "weight_only": None}
    mapping = {"": fq.QConfig(activation=activations[mode], weight=weight)}
    options = {"mode": mode, "qconfig_mapping": mapping, "engine": "reference", "algorithms": algorithms}
    return sqnr_db(model(test), fq.quantize(model, [x], **options)(test))


@pytest.mark.broad
@pytest.mark.parametrize("name", GRIDS)
def test_a_linear_loses_less(name: str) -> None:
    torch.manual_seed(0)
    model, x, test = nn.Sequential(nn.Linear(32, 16)).eval(), correlated(256, 32), correlated(256, 32, seed=1)
    found = [outputs(model, x, test, GRIDS[name], "weight_only", *each) for each in ((BiasCorrection(),), (QUICK,))]
    assert found[1] > found[0] + 2.0


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_a_grouped_convolution_loses_less_in_every_mode(mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, groups=4)).eval()
    x, test = correlated(8, 8, 9, 9), correlated(8, 8, 9, 9, seed=1)
    found = [outputs(model, x, test, GRIDS["int4"], mode, *each) for each in ((BiasCorrection(),), (QUICK,))]
    assert found[1] > found[0] + 0.5


def test_learned_rounding_costs_less_than_the_nearest_and_is_at_most_one_step_away() -> None:
    torch.manual_seed(0)
    spec, weight, x = GRIDS["int4"], torch.randn(6, 12), correlated(512, 12)
    second, scale = (x.T @ x / len(x)).unsqueeze(0), weight.abs().amax(1) / 7
    zero = torch.zeros(6, dtype=torch.int32)
    learned = learn_rounding(weight, second, scale, zero, spec, 300)
    nearest = fake_quantize(weight, scale, zero, spec)
    made = dequantize(learned, scale, zero, spec)
    assert cost(weight - made, second).sum() < 0.8 * cost(weight - nearest, second).sum()
    assert ((weight - made).abs() <= scale[:, None] * (1 + 1e-5)).all()


def test_the_decision_says_so_and_copies_give_the_same_bits() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), correlated(64, 16)
    mapping = {"": fq.QConfig(activation=fq.Spec(), weight=GRIDS["int4"])}
    prepared = fq.prepare_fx(model, mapping, (x,), algorithms=(QUICK, BiasCorrection()))
    fq.calibrate(prepared, [x])
    converted = fq.convert_fx(prepared, engine="reference")
    assert sum("AdaRound: +" in row.reason for row in fq.explain(converted)) == 2
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert torch.equal(fq.convert_fx(other, engine="reference")(x), converted(x))


def test_it_is_not_worse_than_gptq_on_what_it_saw() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 16)).eval(), correlated(256, 32)
    found = [outputs(model, x, x, GRIDS["int4"], "weight_only", each) for each in (GPTQ(), QUICK)]
    assert found[1] >= found[0] - 0.02  # by H, whose correlations are a little less than those of the data


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="steps=0"):
        AdaRound(steps=0)
