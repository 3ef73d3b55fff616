"""Engines as users give them: by name, or one of their own; and the choice by measuring."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines import choose
from fxquant.engines.table import REFERENCE, as_engine
from fxquant.targets.x86 import x86

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


class Told:
    """What an engine was given."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []

    def __call__(self, model: nn.Module) -> nn.Module:
        self.models.append(model)
        return model


def narrow() -> fq.Target:
    """A target that no engine of ours has."""
    return dataclasses.replace(x86(), name="narrow", activation=fq.Spec(bits=5, signed=False, symmetric=False))


def engine(told: Told, *, there: bool = True) -> fq.Engine:
    return fq.Engine(name="mine", target=narrow, available=lambda: there, apply=told, hint="Buy one.")


def levels(model: nn.Module) -> set[object]:
    return {node.args[4] for node in model.graph.nodes if "quantize_per_tensor" in str(node.target)}  # type: ignore[union-attr]


def test_an_engine_of_ones_own_gets_the_model_in_the_form_of_its_target(tmp_path: Path) -> None:
    told = Told()
    mine = engine(told)
    quantized = fq.quantize(net(), [X], engine=mine, effort="fast")
    assert told.models == [quantized] and levels(quantized) == {31}
    fq.save(quantized, tmp_path / "net.fq")
    assert torch.equal(fq.load(tmp_path / "net.fq", engine=mine)(X), quantized(X))
    prepared = fq.prepare_fx(net(), {"": narrow().qconfig}, (X,), target=narrow())
    prepared(X)
    assert torch.equal(fq.convert_fx(prepared, engine=mine)(X), quantized(X))
    assert len(told.models) == 3


def test_an_engine_that_is_not_there_says_what_to_do() -> None:
    prepared = fq.calibrate(fq.prepare_fx(net(), fq.get_default_qconfig_mapping(), (X,)), [X])
    with pytest.raises(fq.ConfigError, match=r"engine 'mine' is not available here. Buy one\."):
        fq.convert_fx(prepared, engine=engine(Told(), there=False))


def test_auto_passes_over_what_fails_and_raises_if_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: nn.Module) -> nn.Module:
        raise fq.FxQuantError("It broke.")

    broken = dataclasses.replace(as_engine("onednn"), apply=fail)
    works = dataclasses.replace(REFERENCE, name="works")
    converted = fq.quantize(net(), [X], engine="reference")
    monkeypatch.setattr(choose, "available_engines", lambda: (broken, works))
    with pytest.warns(UserWarning, match="onednn is left out. It broke"):
        choose.apply_engine(converted, "auto")
    monkeypatch.setattr(choose, "available_engines", lambda: (broken,))
    with pytest.warns(UserWarning, match="left out"), pytest.raises(fq.FxQuantError, match="no engine on this machine"):
        choose.apply_engine(converted, "auto")
