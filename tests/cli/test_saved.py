"""Commands on saved models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fxquant as fq
from fxquant.cli import app

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

def broken():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cli_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import cli_models  # type: ignore[import-not-found]

    fq.save(fq.quantize(cli_models.net(), cli_models.batches(), engine="reference"), "net.fq")
    return "net.fq"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_bench_prints_json_alone(net: str) -> None:
    rows = json.loads(run("bench", net, "--model", "cli_models:net", "--seconds", "0.01", "--json"))["rows"]
    assert rows[0]["name"] == "float" and len(rows) > 1


def test_report_writes_a_page(net: str, tmp_path: Path) -> None:
    words = [
        "report",
        net,
        "--model",
        "cli_models:net",
        "--data",
        "cli_models:batches",
        "--seconds",
        "0",
        "--most",
        "1",
    ]
    assert "written to page.html" in run(*words, "--output", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1_000_000
    assert json.loads(run(*words, "--evaluate", "cli_models:score", "--json"))["score"]["float"] > 0
