"""Commands on saved models."""

from __future__ import annotations

import json
from pathlib import Path

from cli.command import run


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
