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


class Text(nn.Module):
    """Parts that are called by code: one that runs on oneDNN, two on native."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.a, self.b = nn.ConvTranspose2d(4, 4, 1, groups=2), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(x[:, :, None])[:, :, 0]
        if bool(y.isnan().any()):
            return y
        return self.b(self.a(y))  # type: ignore[no-any-return]


def test_what_is_not_native_has_rows() -> None:
    pytest.importorskip("llvmlite")
    x = torch.randn(2, 4, 8)
    between = nn.Sequential(nn.Linear(8, 8), Bessel(), nn.Linear(8, 8)).eval()
    rows = fq.profile(fq.quantize(between, [x], engine="native"), x, rounds=2, show=False)
    assert [row.kernel for row in rows if "Python" in row.kernel] == ["special_bessel_j0, in Python"]
    found = fq.profile(fq.quantize(Text().eval(), [x], engine="native"), x, rounds=2, show=False)
    assert [row.kernel for row in found if "oneDNN" in row.kernel] == ["wide, on oneDNN"]
    assert sum(row.share for row in found) == pytest.approx(1.0)
    assert all(row.milliseconds > 0 and not row.macs for row in found if row.kernel.endswith(("Python", "oneDNN")))


class Bessel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)
