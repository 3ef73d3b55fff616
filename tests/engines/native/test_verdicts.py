"""A program is compared with its graph once; other constants, or another graph, make it another program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines.agreement import compare_results
from fxquant.graph.region import Region, engine_of

pytest.importorskip("llvmlite")

from fxquant.engines.native.cache import Cache


def test_what_agreed_is_not_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def count(*args: object) -> None:
        compared.append(args)
        compare_results(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("fxquant.engines.native.make_program.compare_results", count)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    prepared = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,)), [x])
    made = []
    for _ in range(2):
        converted = fq.convert_fx(prepared, engine=fq.Native(cache=tmp_path))
        assert isinstance(converted, Region)
        assert engine_of(converted) == "native"
        made.append(converted(x))
    assert len(compared) == 1
    assert torch.equal(*made)
    assert made[0].stride() == made[1].stride()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    prepared = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,)), [x])
    fq.convert_fx(prepared, engine=fq.Native(cache=tmp_path))
    assert len(compared) == 2


def test_entries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxquant.engines.native.cache._MOST_ENTRIES", 3)
    cache = Cache(tmp_path / "code")
    for index in range(5):
        cache.store(f"{index}", b"[]")
    assert len([*(tmp_path / "code").iterdir()]) == 3
    assert cache.load("4") == b"[]" and cache.load("0") is None
