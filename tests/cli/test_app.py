"""The commands on saved models: tables, JSON, one line for an error, the traceback on request."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fxquant as fq
from cli.command import run
from fxquant.cli import app
from fxquant.cli.options import print_json


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
        ["export", net, "net.bin", "--format", "onx"],
        ["export", net, "net.json", "--opset", "20"],
        ["export", net, "net.pte", "--dynamic-batch"],
        ["bench", net, "--model", "nosuch:net"],
        ["bench", net, "--data", "cli_models:nothing"],
        ["export", net, "net.onnx", "--data", "cli_models:nothing"],
        ["show", "target", net],
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
    assert result.stderr == "fxquant: RuntimeError at cli_models.py:25 in broken: no luck (--debug shows more)\n"
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


def test_a_place_that_cannot_be_written_is_told_before_the_work(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fxquant.config_file.command
    import fxquant.html_report.report
    import fxquant.tuning.tune

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(fxquant.config_file.command, "quantize", never)
    monkeypatch.setattr(fxquant.html_report.report, "set_side_by_side", never)
    monkeypatch.setattr(fxquant.tuning.tune, "tune", never)
    model, data = ["--model", "cli_models:net"], ["--data", "cli_models:batches"]
    Path("file").write_text("")
    Path("folder.fq").mkdir()
    for words in (
        ["quantize", *model, "--calibration", "cli_models:batches", "--output", "file/net.fq"],
        ["quantize", *model, "--calibration", "cli_models:batches", "--output", "folder.fq"],
        ["tune", *model, *data, "--evaluate", "cli_models:score", "--output", "nowhere/net.fq"],
        ["report", net, *model, *data, "--output", "nowhere/page.html"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1 and result.stderr.startswith("fxquant: cannot "), result.stderr


def test_json_has_the_rows_asked_for_and_no_nan(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run("show", "model", net, "--only", "float", "--json"))["rows"]
    assert rows and {row["status"] for row in rows} == {"float"}
    print_json({"sqnr": [math.inf, math.nan, 0.1 + 0.2]})
    assert json.loads(capsys.readouterr().out) == {"sqnr": [None, None, 0.1 + 0.2]}
