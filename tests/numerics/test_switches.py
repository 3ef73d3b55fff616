"""torch.ao's switches, applied to our models, do what they say."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.numerics.fake_quant import FakeQuant

ao = pytest.importorskip("torch.ao.quantization")
X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def quantizers(model: nn.Module) -> list[FakeQuant]:
    return [module for module in model.modules() if isinstance(module, FakeQuant)]


def batches(model: nn.Module) -> set[int]:
    return {int(q.observer.batches) for q in quantizers(model) if q.observer is not None}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def trained(**changes: Any) -> nn.Module:
    qconfig = fq.get_default_qat_qconfig("x86")
    assert qconfig.activation is not None
    qconfig = fq.QConfig(qconfig.activation.with_(**changes), qconfig.weight)
    return fq.prepare_qat_fx(net().train(), {"": qconfig}, (X,))


@pytest.mark.parametrize("learn", ["ste", "lsq+"])
def test_calibrate_then_train(learn: str) -> None:
    model = trained(learn=learn)
    model.eval()
    model.apply(ao.disable_fake_quant).apply(ao.enable_observer)
    torch.testing.assert_close(model(X), net().eval()(X))
    assert batches(model) == {1}
    model.apply(ao.enable_fake_quant).apply(ao.disable_observer)
    assert not torch.equal(model(X), net().eval()(X))
    model.train()
    model(X * 9)
    assert batches(model) == {1}


def test_a_post_training_model_stops_observing() -> None:
    model = fq.prepare_fx(net().eval(), fq.get_default_qconfig_mapping("x86"), (X,))
    model(X)
    model.apply(ao.disable_observer)
    model(X * 100)
    assert batches(model) == {1}
    fq.calibrate(model, [X])  # is asked for by name
    assert batches(model) == {2}
    model.apply(ao.enable_observer)
    model(X)
    assert batches(model) == {3}


def test_what_algorithms_keep_stops_as_well() -> None:
    seen = fq.prepare_fx(net().eval(), fq.get_default_qconfig_mapping("x86"), (X,))
    seen(X)
    expected = fq.convert_fx(seen, engine="reference").state_dict()
    seen.apply(ao.disable_observer)
    seen(X * 100)
    found = fq.convert_fx(seen, engine="reference").state_dict()
    tensors = [name for name, value in expected.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(found[name], expected[name]) for name in tensors)


def test_switches_go_along_with_the_state() -> None:
    model, twin = trained(), trained()
    model.apply(ao.disable_observer).apply(ao.disable_fake_quant)
    twin.load_state_dict(model.state_dict())
    assert {(q.observing, q.rounding) for q in quantizers(twin)} == {(False, False)}


def test_a_frozen_model_rounds() -> None:
    model = trained()
    model(X)
    frozen = fq.freeze(model.apply(ao.disable_fake_quant))
    torch.testing.assert_close(frozen(X), fq.convert_fx(model, engine="reference")(X), atol=0.02, rtol=0)
    frozen.apply(ao.disable_fake_quant)
    assert not torch.equal(frozen(X), fq.freeze(model)(X))


def test_torch_ao_saves_and_loads_observers() -> None:
    model = fq.prepare_fx(net().eval(), fq.get_default_qconfig_mapping("x86"), (X,))
    fresh = fq.prepare_fx(net().eval(), fq.get_default_qconfig_mapping("x86"), (X,))
    model(X)
    torch.save(ao.get_observer_state_dict(model), file := io.BytesIO())
    file.seek(0)
    ao.load_observer_state_dict(fresh, torch.load(file))
    pairs = zip(quantizers(fresh), quantizers(model), strict=True)
    assert all(one.calculate_qparams() == other.calculate_qparams() for one, other in pairs)
