"""Completion in shells."""

from __future__ import annotations

from typer.testing import CliRunner

from fxquant.cli import app


def test_shells_can_complete() -> None:
    result = CliRunner().invoke(app, [], prog_name="fxquant", env={"_FXQUANT_COMPLETE": "source_bash"})
    assert "complete" in result.stdout and "fxquant" in result.stdout
    words = {"_FXQUANT_COMPLETE": "complete_bash", "COMP_WORDS": "fxquant re", "COMP_CWORD": "1"}
    assert "report" in CliRunner().invoke(app, [], prog_name="fxquant", env=words).stdout
