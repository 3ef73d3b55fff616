"""Reconstruction and learned ranges lose less than what they start from, and leave the float model alone."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, LearnedRanges, Reconstruction
from fxquant.numerics.affine import sqnr_db

W3 = fq.Spec(bits=3, granularity="per_channel", observer="minmax")
A4 = fq.Spec(bits=4, signed=False, symmetric=False, observer="minmax")
FEW_BITS = {"": fq.QConfig(activation=A4, weight=W3)}
QUICK = Reconstruction(steps=25, rows=32)
DATA = [torch.randn(32, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
TEST = torch.randn(128, 8, generator=torch.Generator().manual_seed(9))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 6)).eval()


def quality(mode: str, mapping: object, *algorithms: fq.algorithms.Algorithm, **options: object) -> float:
    made = fq.quantize(
        model(),
        DATA,
        mode=mode,
        qconfig_mapping=mapping,
        algorithms=algorithms,
        engine="reference",
        precision="int8",
        **options,
    )
    return sqnr_db(model()(TEST), made(TEST))


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_few_bits_lose_less_in_every_mode(mode: str) -> None:
    activation = {"static": A4, "dynamic": A4.with_(dynamic=True), "weight_only": None}[mode]
    mapping = {"": fq.QConfig(activation=activation, weight=W3)}
    assert quality(mode, mapping, QUICK) > quality(mode, mapping, BiasCorrection()) + 0.5


def test_ranges_with_outliers_are_learned() -> None:
    wide = {"": fq.QConfig(activation=fq.Spec(bits=4, observer="minmax"), weight=fq.Spec(granularity="per_channel"))}
    found = quality("static", wide, LearnedRanges()), quality("static", wide)
    assert found[0] > found[1] + 0.2


@pytest.mark.parametrize("bits", [4, 8])
def test_activations_of_few_bits_alone_are_dropped(bits: int) -> None:
    mapping = {"": fq.QConfig(activation=A4.with_(bits=bits), weight=W3)}
    found = {quality("static", mapping, Reconstruction(steps=25, drop=drop)) for drop in (0.0, 0.5)}
    assert len(found) == (2 if bits == 4 else 1)


@pytest.mark.parametrize("algorithm", [QUICK, LearnedRanges()], ids=["reconstruction", "ranges"])
def test_powers_of_two_stay_powers_of_two(algorithm: fq.algorithms.Algorithm) -> None:
    made = fq.quantize(model(), DATA, target="npu", algorithms=(algorithm,), engine="reference", precision="int8")
    assert not fq.check_target(made, "npu")
    scales = [float(v) for name, v in made.state_dict().items() if name.endswith("scale") and v.numel() == 1]
    assert scales and all(torch.frexp(torch.tensor(scale))[0] == 0.5 for scale in scales)


def test_the_same_bits_each_time_and_the_float_model_is_left_alone() -> None:
    float_model = model()
    kept = copy.deepcopy(float_model.state_dict())
    prepared = fq.prepare_fx(float_model, FEW_BITS, (TEST,), algorithms=(QUICK,))
    fq.calibrate(prepared, DATA)
    first = fq.convert_fx(prepared, engine="reference")
    assert all("reconstructed" in row.reason for row in fq.explain(first) if row.is_weighted)
    for other in (prepared, pickle.loads(pickle.dumps(prepared)), fq.freeze(prepared)):
        assert torch.equal(fq.convert_fx(other, engine="reference")(TEST), first(TEST))
    assert all(torch.equal(value, kept[name]) for name, value in float_model.state_dict().items())
    assert all(parameter.grad is None for parameter in float_model.parameters())


def test_calls_of_a_fixed_batch_and_parts_of_a_model_are_reconstructed() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = model(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).view(32, 6)
            return self.two(y) if float(y.sum()) > -1e9 else y

    with torch.inference_mode():
        made = fq.quantize(
            Parts().eval(), DATA, qconfig_mapping=FEW_BITS, algorithms=(QUICK,), engine="reference", precision="int8"
        )
    reasons = {row.path: row.reason for row in fq.explain(made) if row.is_weighted}
    assert "reconstructed" in reasons["one.0"] and "reconstructed" in reasons["two"]


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"steps": 0}, {"rows": 0}, {"drop": 1.0}):
        with pytest.raises(fq.ConfigError, match=next(iter(wrong))):
            Reconstruction(**wrong)
