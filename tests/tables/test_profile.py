"""`fq.profile` on models that it cannot look into."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines import choose


def test_profile_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized = fq.quantize(nn.Linear(4, 4).eval(), [torch.randn(2, 4)], engine="reference")
    found = choose.as_engine("native")
    monkeypatch.setattr(choose, "as_engine", lambda name: replace(found, available=lambda: False))
    with pytest.raises(fq.ConfigError, match=r"fxquant\[native\]"):
        fq.profile(quantized, torch.randn(2, 4))


def test_profile_asks_for_the_native_engine() -> None:
    quantized = fq.quantize(nn.Linear(4, 4).eval(), [torch.randn(2, 4)], engine="reference")
    with pytest.raises(fq.StageError, match="engine='native'"):
        fq.profile(quantized, torch.randn(2, 4))


def test_kernels_may_take_no_time_that_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    quantized = fq.quantize(nn.Linear(4, 4).eval(), [torch.randn(2, 4)], engine="native")
    monkeypatch.setattr("fxquant.tables.profile._steps", lambda program, inputs, rounds: [("linear", 16, 0.0)])
    found = fq.profile(quantized, torch.randn(2, 4), show=False)
    assert [(row.share, row.of_peak) for row in found] == [(0.0, 0.0)] and found.of_peak == 0.0
    assert "linear" in str(found)
