"""Commands as a user types them."""

from __future__ import annotations

from typer.testing import CliRunner

from fxquant.cli import app


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout
