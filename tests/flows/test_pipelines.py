"""The pipelines are what the documents say, pass by pass, and every pass keeps the contract."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxquant.flows import pipelines
from fxquant.graph.run_passes import Pass

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- passes: from their docstrings, see tests/flows/test_pipelines.py -->\n", "<!-- end of passes -->\n"
PIPELINES = {name: value for name, value in vars(pipelines).items() if name.isupper()}
PASSES = list(dict.fromkeys(step for passes in PIPELINES.values() for step in passes))


def table() -> str:
    """The table of the passes as the documents are to have it."""
    rows, told = ["| pipeline | pass | what it does |", "|---|---|---|"], set()
    for name, passes in PIPELINES.items():
        for step in passes:
            text = "as above" if step in told else first_line(step)
            rows.append(f"| {f'{name} ' if step is passes[0] else ''}| `{step.__name__}` | {text} |")
            told.add(step)
    return "\n".join(rows) + "\n"


def first_line(step: Pass) -> str:
    return (inspect.getdoc(step) or "").partition("\n")[0]


def parts_of(text: str) -> Iterator[str]:
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    yield from (before, inside, after)


def test_the_documents_list_the_passes_as_they_run() -> None:
    """Run this file as a script to write the table."""
    _, inside, _ = parts_of(DOCS.read_text())
    assert inside == table()


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.__name__)
def test_a_pass_takes_a_region_and_a_context_says_what_it_does_and_returns_nothing(step: Pass) -> None:
    signature = inspect.signature(step)
    assert list(signature.parameters) == ["region", "context"]
    assert signature.return_annotation == "None"
    assert first_line(step).endswith(".")
    assert not step.__name__.startswith("<")


if __name__ == "__main__":
    before, _, after = parts_of(DOCS.read_text())
    DOCS.write_text(before + BEGIN + table() + END + after)
