"""docs/results.md is what benchmarks/recipes.py writes: its columns, a value in every row, each row once."""

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
    found = rows.read_rows(text)
    assert rows.table(found.values()) in text, "write the table by benchmarks/recipes.py"
    for cells in found.values():
        assert len(cells) == len(rows.COLUMNS)
        float(cells[3]), date.fromisoformat(cells[-1])
    assert found


def test_a_row_takes_the_place_of_an_older_one(rows: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    order = [("net", "float"), ("net", "PTQ")]
    first = rows.Row(model="net", method="PTQ", metric="top-1", value=90.0, size=4000, latency={"onednn": 1.5})
    rows.write_rows(file, [first], order, "# head")
    rows.write_rows(file, [rows.Row(model="net", method="float", metric="top-1", value=92.0)], order, "# head")
    rows.write_rows(file, [rows.Row(model="net", method="PTQ", metric="top-1", value=91.0)], order, "# head")
    found = rows.read_rows(file.read_text())
    assert list(found) == order and found["net", "PTQ"][3] == "91.00"
