"""Commands that make models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


def test_the_name_of_another_format_is_refused_before_the_work(net: str) -> None:
    words = ["--model", "cli_models:net", "--output", "net.onnx"]
    for given in (
        ["quantize", "--calibration", "cli_models:fails"],
        ["tune", "--data", "cli_models:fails", "--evaluate", "cli_models:score"],
    ):
        result = CliRunner().invoke(app, [given[0], *words, *given[1:]])
        assert result.exit_code == 1 and "ends in .fq; fxquant.export_onnx" in result.output


def test_quantize_without_a_file_takes_the_defaults(net: str, tmp_path: Path) -> None:
    words = ["quantize", "--model", "cli_models:net", "--calibration", "cli_models:batches", "--engine", "reference"]
    found = json.loads(run(*words, "--evaluate", "cli_models:score", "--output", "made/net.fq", "--json"))
    assert found["accuracy"]["quantized"] == pytest.approx(found["accuracy"]["float"], rel=0.01)
    assert fq.explain(fq.load(found["saved"])).summary() == found["summary"]
    assert "weighted ops quantized (100%)" in run(*words, "--output", "folder")
    assert fq.load("folder") is not None
    for wrong, told in ((words[:3], "give --calibration"), ([*words, "--workers", "2"], "go with a conf.yaml")):
        result = CliRunner().invoke(app, wrong)
        assert result.exit_code == 1 and told in result.output
