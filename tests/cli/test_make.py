"""Commands that make models."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import fxquant as fq
from cli.command import run
from fxquant.cli import app


def test_tune_saves_the_best(net: str, tmp_path: Path) -> None:
    words = ["tune", "--model", "cli_models:net", "--data", "cli_models:batches", "--engine", "reference"]
    found = json.loads(run(*words, "--evaluate", "cli_models:score", "--timeout", "0", "--json"))
    assert found["passed"] and len(found["trials"]) == 1
    assert fq.load("tuned.fq") is not None
    missed = CliRunner().invoke(app, [*words, "--evaluate", "cli_models:falls", "--max-trials", "1"])
    assert missed.exit_code == 3 and "NOT within the tolerance" in missed.stdout
