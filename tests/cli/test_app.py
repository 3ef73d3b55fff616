"""The commands on saved models: tables, JSON, one line for an error, the traceback on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fxquant as fq
from cli.command import run
from fxquant.cli import app


def test_the_commands(net: str, tmp_path: Path) -> None:
    assert "int8" in run("show", "model", net)
    assert "conv" not in run("show", "model", net, "--only", "int8")
    assert run("show", "model", net, "--only", "dynamic").startswith("no op is dynamic: ")
    assert json.loads(run("show", "model", net, "--json"))["int8_share"] == 1.0
    found = json.loads(run("compare", net, "--model", "cli_models:net", "--data", "cli_models:batches", "--json"))
    assert found["output_sqnr"] > 15 and found["batches"] == 3
    assert "is sound" in run("check", net)
    pytest.importorskip("onnx")
    assert "wrote" in run("export", net, "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size
    for words in (["net.pt2"], ["net.json"], ["net.onnx", "--opset", "19"]):
        assert "wrote" in run("export", net, *words)
        assert (tmp_path / words[0]).exists()


def test_an_error_is_one_line(net: str) -> None:
    whole = Path(net).read_bytes()
    Path("broken.fq").write_bytes(whole[:-8] + bytes(8))
    for words in (
        ["check", "broken.fq"],
        ["show", "model", net, "--only", "int7"],
        ["export", net, "net.xyz"],
        ["export", net, "ints", "--format", "integers"],
        ["export", net, "net.json", "--opset", "20"],
        ["export", net, "net.pte", "--dynamic-batch"],
        ["bench", net, "--model", "nosuch:net"],
        ["bench", net, "--data", "cli_models:nothing"],
        ["export", net, "net.onnx", "--data", "cli_models:nothing"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1
        assert result.stderr.startswith("fxquant: ") and "Traceback" not in result.stderr
    words = ["forecast", "--model", "cli_models:net", "--target", "xint8", "--shape", "2,9"]
    assert "At ." not in CliRunner().invoke(app, words).stderr
    shown = CliRunner().invoke(app, ["check", "broken.fq", "--debug"])
    assert isinstance(shown.exception, fq.ArchiveError)


COMMANDS = ("demo", "init", "quantize", "tune", "bench", "compare", "report", "check", "forecast", "export", "schema")


@pytest.mark.parametrize("command", [*COMMANDS, "show model", "show target"])
def test_the_help_has_an_example(command: str) -> None:
    text = " ".join(run(*command.split(), "--help").split())
    assert f"Example: fxquant {command}" in text
    if command not in ("init", "schema", "export"):
        assert "--json" in text


def test_the_help_lists_the_commands_and_exit_codes() -> None:
    text = run("--help")
    assert all(command in text for command in COMMANDS) and "Exit codes" in text
    assert run("--version").startswith("fxquant ")


def test_an_error_of_the_users_code_is_one_line_too(net: str) -> None:
    words = ["compare", net, "--model", "cli_models:net", "--data", "cli_models:broken"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert result.stderr == "fxquant: RuntimeError: no luck (--debug shows where)\n"
    assert isinstance(CliRunner().invoke(app, [*words, "--debug"]).exception, RuntimeError)
    assert CliRunner().invoke(app, ["bench"]).exit_code == 2
    assert "nosuch.fq" in CliRunner().invoke(app, ["check", "nosuch.fq"]).stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "cli_models:none", "--data", "cli_models:batches"], "--model cli_models:none got a NoneType"),
        (["--model", "cli_models:net", "--data", "cli_models:none"], "'cli_models:none' gave a NoneType"),
    ],
)
def test_a_function_that_returns_nothing_is_named(net: str, words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["compare", net, *words])
    assert result.exit_code == 1 and told in result.stderr
