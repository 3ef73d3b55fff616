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
