"""The tuple of engines, and the ways to name one of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines.native.apply import has_native
from fxquant.engines.table import ENGINES, as_engine, available_engines, targets_of_engines
from fxquant.graph.region import Region, engine_of
from fxquant.targets import by_name
from fxquant.targets.arm import arm


def test_names_are_unique_and_lead_back() -> None:
    assert [as_engine(engine.name) for engine in ENGINES] == list(ENGINES)
    assert all(as_engine(engine) is engine for engine in ENGINES)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    known = ", ".join(engine.name for engine in ENGINES)
    with pytest.raises(fq.ConfigError, match=f"'gpu' is unknown. Known: {known}, auto; or give a fxquant.Engine"):
        as_engine("gpu")


def test_a_misspelt_name_is_told_the_closest() -> None:
    with pytest.raises(fq.ConfigError, match=r"Closest: 'onnxruntime'\."):
        as_engine("onnxrutime")


def test_settings_make_the_native_engine() -> None:
    assert as_engine(fq.Native(cache=None)).name == "native"


def test_the_default_is_native_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_engine(None).name == ("native" if has_native() else "onednn")
    monkeypatch.setattr("fxquant.engines.native.apply.host", lambda: None)
    assert as_engine(None).name == "onednn"


def test_without_a_name_models_run_on_the_default(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"))
    for model in (quantized, loaded):
        assert isinstance(model, Region)
        assert engine_of(model) == as_engine(None).name
    assert torch.equal(quantized(x), loaded(x))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_target_goes_by_its_own_name(engine: fq.Engine) -> None:
    assert by_name(engine.target().name) == engine.target()


def test_a_name_brings_the_grids_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = fq.Engine(name="signed", target=arm, available=lambda: True, apply=lambda model: model)
    monkeypatch.setattr("fxquant.engines.table.ENGINES", (*ENGINES, signed))
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.randn(4, 8)
    for engine in (signed, "signed"):
        assert fq.explain(fq.quantize(model, [x], engine=engine)).counts() == {"int8": 3}


def test_the_plain_graph_is_not_raced() -> None:
    names = [engine.name for engine in available_engines()]
    assert names[0] == "onednn"
    assert "reference" not in names


def test_each_target_is_observed_once() -> None:
    """Limits of weights make no difference there."""

    def observed(target: fq.Target) -> fq.Target:
        plain = target.weight.with_(limits=None)
        return dataclasses.replace(target, name="x86" if target.name.startswith("x86") else target.name, weight=plain)

    found = [observed(target) for target in targets_of_engines()]
    wanted = [observed(engine.target()) for engine in ENGINES]
    assert len({target.name for target in found}) == len(found)
    assert all(target in found for target in wanted)
