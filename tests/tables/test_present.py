"""Results as text, HTML and CSV: paths stay whole, text is escaped."""

from __future__ import annotations

from fxquant.tables.present import as_csv, as_html, as_text, new_table


def test_a_path_is_never_broken() -> None:
    path = ".".join(["module"] * 40)
    table = new_table("title", ("path", "why"), whole=("path",))
    table.add_row(path, "a reason " * 40)
    text = as_text(table, "the end")
    assert path in text and text.startswith("title") and text.endswith("the end")


def test_html_is_escaped() -> None:
    assert "<td>&lt;b&gt;</td>" in as_html("", ("a",), [("<b>",)])


def test_csv_has_a_line_for_each_row() -> None:
    assert as_csv(("a", "b"), [(1, ("x", "y")), ("c,d", 2)]) == 'a,b\n1,x y\n"c,d",2\n'
