"""Ranges by what they do at the outputs, for models that do well: no warning, nothing lifted."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import fxquant as fq


def spiky() -> tuple[nn.Module, list[Tensor]]:
    """A model whose first input has a few large values, which count for nothing."""
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(16, 4)).eval(), [torch.randn(100, 16) for _ in range(4)]
    with torch.no_grad():
        model[0].weight[:, 0] = 0
    for batch in data:
        batch[50, 0] = 50.0
    return model, data


def test_values_that_count_for_nothing_are_cut_off() -> None:
    model, data = spiky()
    found = {}
    for effort in ("fast", "balanced"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = fq.quantize(model, data, effort=effort, engine="reference")  # type: ignore[arg-type]
        found[effort] = fq.check(model, made, data).sqnr
        reasons = [row.reason for row in fq.explain(made)]
        assert [row.status for row in fq.explain(made)] == ["int8"]
        assert any("range by" in reason for reason in reasons) == (effort == "balanced")
    assert 20 < found["fast"] < found["balanced"] - 6
