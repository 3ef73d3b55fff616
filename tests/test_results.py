"""docs/results.md is what benchmarks/recipes.py writes: columns, each row once; README.md shows its figures."""

from __future__ import annotations

import importlib
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("_rows")


def test_the_table_has_the_shape_that_the_command_writes(rows: ModuleType) -> None:
    text = (ROOT / "docs/results.md").read_text()
    page = rows.read_page(text)
    assert page.text(page.rows) in text, "write the table by benchmarks/recipes.py"
    for cells in page.rows.values():
        float(cells["value"]), date.fromisoformat(cells["measured"])
        assert cells["metric"] and cells["on"] in page.settings
    assert page.rows


def test_the_readme_shows_figures_of_the_page(rows: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    page = rows.read_page((ROOT / "docs/results.md").read_text())
    assert rows.with_short_lines(readme, page) == readme, "write the lines by benchmarks/recipes.py"


def test_figures_take_the_place_of_older_ones(rows: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    page = rows.Page()
    order = rows.placed([("other", "float")], "net", ["float", "PTQ"])
    page.put(rows.Row(model="net", method="PTQ", metric="top-1", value=90.0, size=4000, note="quick"), "here")
    page.put(rows.Row(model="net", method="PTQ", times={"torch": 1.5}), "here")
    page.put(rows.Row(model="net", method="float", metric="top-1", value=92.0), "here")
    page.put(rows.Row(model="net", method="PTQ", metric="top-1", value=91.0), "here")
    found = rows.read_page(page.text(order))
    assert list(found.rows) == [("net", "float"), ("net", "PTQ")]
    assert found.rows["net", "PTQ"]["value"] == "91.00" and found.rows["net", "PTQ"]["note"] == ""
    assert found.rows["net", "PTQ"]["ms torch"] == "1.50"
    monkeypatch.setattr(rows, "SHORT_MODELS", ("net", "another"))
    found.rows["net", "PTQ W8A8"] = found.rows["net", "PTQ"]
    assert rows.short_lines(found).splitlines()[1:-1] == ["- net, top-1: float 92.00, int8 91.00."]


def test_a_row_is_of_one_setting(rows: ModuleType) -> None:
    page = rows.Page()
    page.put(rows.Row(model="net", method="PTQ", metric="top-1", value=90.0), "one machine")
    page.put(rows.Row(model="net", method="float", metric="top-1", value=92.0), "one machine")
    page.put(rows.Row(model="net", method="PTQ", times={"torch": 1.5}), "another")
    found = rows.read_page(page.text(page.rows))
    assert found.settings == {"a": "one machine", "b": "another"}
    assert found.rows["net", "PTQ"]["value"] == "" and found.rows["net", "PTQ"]["on"] == "b"


def test_a_model_keeps_its_place(rows: ModuleType) -> None:
    order = [("one", "float"), ("two", "float"), ("three", "float")]
    assert rows.placed(order, "two", ["float", "PTQ"]) == [*order[:2], ("two", "PTQ"), order[2]]
