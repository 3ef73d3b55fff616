"""Results as text, HTML and CSV: paths stay whole, text is escaped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from rich.table import Table

import fxquant as fq
from fxquant.tables.present import Shown, as_csv, as_text, new_table


def test_a_path_is_never_broken() -> None:
    path = ".".join(["module"] * 40)
    table = new_table("title", ("path", "why"), whole=("path",))
    table.add_row(path, "a reason " * 40)
    text = as_text(table, "the end")
    assert path in text and text.startswith("title") and text.endswith("the end")


@pytest.mark.parametrize("columns", [20, 30, 40, 60])
def test_spare_columns_give_way_and_no_cell_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ("path", "range", "more", "most")
    table = new_table("title", names, whole=names)
    table.add_row("layer.conv", "-1.25 .. 1.25", "0.5 of 1", "12345")
    title, *lines = as_text(table, spare=names[1:]).splitlines()
    assert "…" not in "".join(lines) and max(map(len, lines)) <= columns
    gone = [name for name in names if name not in lines[0]]
    assert title == ("title" if columns == 60 else f"title; left out to fit: {', '.join(gone)}")
    assert table.columns[-1].header == "most"  # the table itself is whole


@pytest.mark.parametrize("gone", range(1, 5))
def test_headings_are_whole_when_columns_gave_way(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    names = ("path", "first", "second", "third", "fourth", "fifth")
    table = new_table("title", names, whole=names, right=names[1:])
    table.add_row("block.conv", *("1" * 5))
    monkeypatch.setenv("COLUMNS", str(len("  ".join(("block.conv", *names[gone + 1 :]))) + 2))
    _, head, _ = as_text(table, spare=names[1 : gone + 1][::-1]).splitlines()
    assert head.split() == ["path", *names[gone + 1 :]]


def test_words_are_not_broken_where_a_column_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    path = "encoder.layers.11.attention.self.query_projection"
    table = new_table("title", ("op", "why", "what to do"), whole=("op",))
    table.add_row("linear", f"fused into {path} and more words", "nothing that is worth a word " * 2)
    lines = as_text(table).splitlines()
    assert any(path in line for line in lines)
    assert max(map(len, lines)) < len(path) + 36


def test_html_is_escaped() -> None:
    table = new_table("a < b", ("path", "n"))
    table.add_row("<b>", "1")

    class Found(Shown):
        def parts(self) -> tuple[str, Table]:
            return "c > d", table

    page = Found()._repr_html_()
    assert (
        page.startswith("<p>c &gt; d</p>\n<table><caption>a &lt; b</caption>")
        and "<td>&lt;b&gt;</td><td>1</td>" in page
    )


def test_csv_has_a_line_for_each_row() -> None:
    assert as_csv(("a", "b"), [(1, ("x", "y")), ("c,d", 2)]) == 'a,b\n1,x y\n"c,d",2\n'


def test_a_prompt_shows_the_table() -> None:
    table = new_table("title", ("path", "n"))
    table.add_row("conv", "1")

    @dataclass(frozen=True, slots=True, repr=False)
    class Found(Shown):
        rows: tuple[int, ...]

        def parts(self) -> tuple[Table]:
            return (table,)

    assert repr(Found((1, 2))) == str(Found((1, 2))) == repr(table) == "title\npath  n\nconv  1"


@pytest.mark.parametrize("name", fq.__all__)
def test_no_result_shows_its_fields_at_a_prompt(name: str) -> None:
    found = getattr(fq, name)
    if isinstance(found, type) and issubclass(found, Shown):
        assert "__repr__" not in vars(found) or name == "Benchmark"  # which prints itself
