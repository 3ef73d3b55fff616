"""A module that is put in the place of another in a converted model is seen by every engine, or refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.errors import StageError
from fxquant.numerics.affine import sqnr_db

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
ENGINES = ["reference", "onednn", "native"]


def quantized(engine: str) -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(64, 2)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (X,))
    prepared(X)
    result = fq.convert_fx(prepared, engine=engine)
    result(X)  # kernels are made, and runs kept
    result(X)
    return result


@pytest.mark.parametrize("engine", ENGINES)
def test_another_activation_is_what_runs(engine: str) -> None:
    plain, model = quantized("reference"), quantized(engine)
    before = model(X)
    for each in (plain, model):
        each[0][1] = nn.Tanh()
    assert sqnr_db(plain(X), model(X)) > 35
    assert sqnr_db(before, model(X)) < 20


@pytest.mark.parametrize("engine", [*ENGINES, "onnxruntime"])
def test_a_forward_put_on_a_module_is_what_runs(engine: str) -> None:
    pytest.importorskip("onnxruntime" if engine == "onnxruntime" else "torch")
    model = quantized(engine)
    before = model(X)
    model[0][1].forward = lambda x: 3 * x.abs()
    plain = quantized("reference")
    plain[0][1].forward = model[0][1].forward
    for _ in range(3):
        assert sqnr_db(plain(X), model(X)) > 35
    assert sqnr_db(before, model(X)) < 10
    del model[0][1].__dict__["forward"]
    for _ in range(3):
        assert sqnr_db(before, model(X)) > 60


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_of_another_class_does_what_that_does(engine: str) -> None:
    plain, model = quantized("reference"), quantized(engine)
    before = model(X)
    for each in (plain, model):
        each[0][1].__class__ = nn.Tanh
    for _ in range(3):
        assert sqnr_db(plain(X), model(X)) > 35
    assert sqnr_db(before, model(X)) < 20


@pytest.mark.broad
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("first", [True, False], ids=["change, copy", "copy, change"])
@pytest.mark.parametrize("engine", [*ENGINES, "onnxruntime"])
def test_what_changes_between_a_copy_and_its_first_call_is_seen(
    engine: str, first: bool, copied: Callable[[nn.Module], nn.Module]
) -> None:
    pytest.importorskip("onnxruntime" if engine == "onnxruntime" else "torch")
    plain, model = quantized("reference"), quantized(engine)
    before = model(X)
    for change in (_forward, _module, _class):
        pair = [plain, model] if first else [copied(plain), copied(model)]
        pair = [copy.deepcopy(each) for each in pair]
        for each in pair:
            change(each)
        if first:
            pair = [copied(each) for each in pair]
        for _ in range(2):
            assert sqnr_db(pair[0](X), pair[1](X)) > 35
        assert sqnr_db(before, pair[1](X)) < 20


class Steep:
    """A forward that can be copied."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * x.abs()


def _forward(model: nn.Module) -> None:
    model.get_submodule("0.1").forward = Steep()


def _module(model: nn.Module) -> None:
    model.set_submodule("0.1", nn.Tanh())


def _class(model: nn.Module) -> None:
    model.get_submodule("0.1").__class__ = nn.Tanh


@pytest.mark.parametrize("engine", ENGINES)
def test_a_float_layer_in_the_place_of_integers_is_refused(engine: str) -> None:
    model = quantized(engine)
    before, kept = model(X), model.get_submodule("2")
    model.add_module("2", nn.Linear(64, 2))
    with pytest.raises(StageError, match="'2' is a Linear now, without 'weight"):
        model(X)
    model.add_module("2", kept)
    assert torch.equal(model(X), before)
    del model.get_submodule("0")._modules["1"]
    with pytest.raises(StageError, match=r"'0\.1' is not there any more"):
        model(X)
