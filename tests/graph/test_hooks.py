"""Hooks that a model has before it is prepared: those of single ops go on being called, of others a warning tells."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.drop, self.out = nn.Dropout(), nn.Conv2d(8, 4, 1)
        self.stem[1].running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.stem(x)))


X = torch.randn(2, 3, 8, 8)


def converted(model: nn.Module, engine: Any = "onednn") -> nn.Module:
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (X,))
    prepared(X)
    return fq.convert_fx(prepared, engine=engine)


@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("path", ["stem.0", "stem.1", "stem.2", "drop", "out"])
def test_hooks_of_ops_go_on_being_called(path: str, engine: Any) -> None:
    model, seen = Net().eval(), []
    model.get_submodule(path).register_forward_hook(lambda module, args, result: seen.append(path) or 3 * result + 1)
    model.get_submodule(path).register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    expected = model(X)
    quantized = converted(model, engine)
    seen.clear()
    assert sqnr_db(expected, quantized(X)) > 25
    assert seen == [path]
    assert model.get_submodule(path)._forward_hooks  # the float model keeps its own


def test_a_trained_model_calls_them() -> None:
    model, seen = Net().train(), []
    model.out.register_forward_hook(lambda module, args, result: seen.append(1) or -result)
    prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (X,))
    prepared(X).sum().backward()
    quantized = fq.convert_fx(prepared.eval())
    seen.clear()
    assert sqnr_db(prepared(X), quantized(X)) > 30
    assert len(seen) == 2


def test_hooks_with_which_transformers_gathers_outputs_are_no_news() -> None:
    model, gathered = Net().eval(), []

    def output_capturing_hook(module: nn.Module, args: Any, result: Tensor) -> None:
        if gathered:  # a call asked for it
            gathered.append(result)

    output_capturing_hook.__module__ = "transformers.utils.output_capturing"
    model.stem.register_forward_hook(output_capturing_hook)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = converted(model)
        quantized(X)


def test_hooks_that_are_traced_are_told_of() -> None:
    model = Net().eval()
    model.stem.register_forward_hook(lambda module, args, result: 2 * result)
    with pytest.warns(UserWarning, match="hooks of 'stem' were traced"):
        quantized = converted(model)
    with warnings.catch_warnings():  # they have their effect
        warnings.simplefilter("error")
        assert sqnr_db(model(X), quantized(X)) > 25


def test_hooks_are_not_in_files(tmp_path: Path) -> None:
    model = Net().eval()
    model.out.register_forward_hook(lambda module, args, result: 2 * result)
    with pytest.warns(UserWarning, match="save: the hooks of 'out' are Python"):
        fq.save(converted(model), tmp_path / "net.fq")


@pytest.mark.parametrize("engine", ["native", "onednn", "reference"])
def test_hooks_that_nothing_calls_are_told_of(engine: Any) -> None:
    quantized, seen = converted(Net().eval(), engine), []
    quantized(X)
    for path in ("stem", "stem.1", "drop", "out"):  # a container, what was folded, what does nothing; and an op
        quantized.get_submodule(path).register_forward_hook(lambda *args, path=path: seen.append(path))
    with pytest.warns(UserWarning, match="hooks of 'stem', 'stem.1', 'drop' are not called.*'stem\\."):
        quantized(X)
    assert seen == ["out"]
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        quantized(X)


def test_standalone_modules_call_hooks() -> None:
    config = fq.PrepareCustomConfig().set_standalone_module_name("stem", None, None, None, None)
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (X,), config)
    quantized, seen = fq.convert_fx(fq.calibrate(prepared, [X])), []
    quantized.get_submodule("stem").register_forward_hook(lambda module, args, result: seen.append(result.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(X)
    assert seen == [(2, 8, 6, 6)]
