"""What lies between zero and a clip fills both halves of a signed grid."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, CrossLayerEqualization
from fxquant.flows.decide import decide
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant


def steps(count: int, seed: int) -> torch.Tensor:
    values = torch.randn(count, 3, 14, 14, generator=torch.Generator().manual_seed(seed))
    return values.clamp(-3, 3).mul(16).round() / 16


DATA, TEST = [steps(8, seed) for seed in range(2)], steps(20, 9)


def clipped(behind: nn.Module, act: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 1), act or nn.ReLU6(), behind).eval()
    with torch.no_grad():
        model[0].weight.mul_(9)
    return model


TAKERS = {
    "convolution": lambda: nn.Conv2d(16, 4, 1),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, groups=16),
    "zeros": lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(16, 16, 3, groups=16)),
    "mirror": lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(16, 4, 3)),
}
OTHERS = {
    "padded": lambda: clipped(nn.Conv2d(16, 4, 3, padding=1)),
    "pool": lambda: clipped(nn.AdaptiveAvgPool2d(1)),
    "no bias": lambda: clipped(nn.Conv2d(16, 4, 1, bias=False)),
    "no end": lambda: clipped(nn.Conv2d(16, 4, 1), nn.ReLU()),
    "output": lambda: clipped(nn.Identity()),
}


def quantized(model: nn.Module, target: str = "npu") -> nn.Module:
    algorithms = (CrossLayerEqualization(), BiasCorrection())
    return fq.quantize(model, DATA, target=target, algorithms=algorithms, engine="reference", precision="int8")


def centred(made: nn.Module) -> list[str]:
    return [row.path for row in fq.explain(made) if "centre_clips: clip of 0 to" in row.reason]


@pytest.mark.parametrize("name", TAKERS)
def test_the_float_function_stays_on_any_data(name: str) -> None:
    model, rules = clipped(TAKERS[name]()), {"": fq.get_default_qconfig("npu")}
    prepared = fq.prepare_fx(model, rules, (TEST,), target="npu", algorithms=(CrossLayerEqualization(),))
    decided = decide(fq.calibrate(prepared, DATA))
    assert any("centre_clips" in str(node.meta.get("rewritten", "")) for node in decided.graph.nodes)
    for module in decided.modules():
        if isinstance(module, FakeQuant):
            module.forward = lambda x, **_: x  # type: ignore[method-assign]
    torch.testing.assert_close(decided(3 * TEST), model(3 * TEST), rtol=1e-4, atol=1e-4)


def test_steps_are_half_as_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and inputs lie on their grids, so that all noise is that of the tensor between."""
    models = [clipped(make()) for make in TAKERS.values()]
    monkeypatch.setattr("fxquant.algorithms.cross_layer_equalization.fit_powers", lambda *_: None)
    for conv in (conv for model in models for conv in model.modules() if isinstance(conv, nn.Conv2d)):
        exponents = torch.randint(-3, 1, conv.weight.shape)
        conv.weight.data.copy_(conv.weight.sign() * 2.0**exponents)
    after = [quantized(model) for model in models]
    monkeypatch.setattr("fxquant.algorithms.cross_layer_equalization.centre_clips", lambda *_: False)
    before = [quantized(model) for model in models]
    gains = [
        sqnr_db(model(TEST), new(TEST)) - sqnr_db(model(TEST), old(TEST))
        for model, new, old in zip(models, after, before, strict=True)
    ]
    assert min(gains) > 4
    for model, made in zip(models, after, strict=True):
        assert centred(made) == ["1"]
        assert not fq.check_target(made, "npu")
        assert {row.status for row in fq.explain(made)} == {"int8"}
        assert min(row.own_sqnr for row in fq.compare(model, made, DATA) if row.own_sqnr is not None) > 25


@pytest.mark.parametrize("name", OTHERS)
def test_other_clips_stay(name: str) -> None:
    assert not centred(quantized(OTHERS[name]()))


def test_biases_of_a_few_bits_would_lose_more() -> None:
    """Unless weights make up for what they lose."""
    model = clipped(nn.Conv2d(16, 4, 1))
    assert not centred(quantized(model, "xint8"))
    algorithms = fq.algorithms.BALANCED
    made = fq.quantize(model, DATA, target="xint8", algorithms=algorithms, engine="reference", precision="int8")
    assert centred(made) == ["1"] and not fq.check_target(made, "xint8")


@pytest.mark.parametrize("name", TAKERS)
def test_what_loads_the_state_computes_the_same(name: str) -> None:
    """Such as a model for training, and a pickle."""
    model, given = clipped(TAKERS[name]()), fq.get_default_qconfig("npu")
    algorithms = (CrossLayerEqualization(), BiasCorrection())
    prepared = fq.prepare_fx(model, {"": given}, (TEST,), target="npu", algorithms=algorithms)
    frozen = fq.freeze(fq.calibrate(prepared, DATA))
    made = fq.convert_fx(frozen, engine="reference")
    for other in (pickle.loads(pickle.dumps(frozen)), copy.deepcopy(frozen)):
        assert torch.equal(fq.convert_fx(other, engine="reference")(TEST), made(TEST))
    learned = fq.QConfig(activation=given.activation.with_(learn="tqt"), weight=given.weight.with_(learn="tqt"))
    trains = fq.prepare_qat_fx(copy.deepcopy(model).train(), {"": learned}, (TEST,), target="npu")
    trains.load_state_dict(frozen.state_dict())
    assert sqnr_db(made(TEST), trains.eval()(TEST)) > 30
    again = fq.prepare_qat_fx(copy.deepcopy(model).train(), {"": learned}, (TEST,), target="npu")
    again.load_state_dict(trains.state_dict())
    assert torch.equal(again.eval()(TEST), trains(TEST))


def test_grids_without_signs_need_none() -> None:
    model = clipped(nn.Conv2d(16, 4, 1))
    given = fq.get_default_qconfig("npu")
    unsigned = fq.QConfig(activation=given.activation.with_(signed=False, symmetric=False), weight=given.weight)
    made = fq.quantize(
        model, DATA, qconfig_mapping={"": unsigned}, algorithms=(CrossLayerEqualization(),), engine="reference"
    )
    assert not centred(made)


@pytest.mark.parametrize("name", ["convolution", "zeros"])
def test_integers_are_those_of_the_reference(name: str) -> None:
    made = quantized(clipped(TAKERS[name]()))
    assert centred(made)
    assert torch.equal(torch.from_numpy(fq.integer_reference(made, (TEST,))(TEST.numpy())), made(TEST))
