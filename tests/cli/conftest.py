"""A saved model, and the module that it is from, for the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fxquant as fq

MODULE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.LogSoftmax(1)).eval()

def batches():
    return [torch.randn(2, 8) for _ in range(3)]

def score(model):
    return float(model(torch.ones(2, 8)).exp().sum())

def falls(model):
    return 1.0 if isinstance(model, nn.Sequential) and not hasattr(model, "graph") else 0.0

def nothing():
    return []

def none():
    return None

def broken():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cli_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cli_models", raising=False)  # that of another test's directory
    import cli_models  # type: ignore[import-not-found]

    fq.save(fq.quantize(cli_models.net(), cli_models.batches(), engine="reference"), "net.fq")
    return "net.fq"
