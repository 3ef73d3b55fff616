"""How results are shown: as text of the terminal's width, as an HTML table, as CSV. Paths are never broken.

rich is imported when something is shown.
"""

from __future__ import annotations

import abc
import copy
import csv
import dataclasses
import functools
import html
import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Column, Table

_NO_TERMINAL = 160  # columns, in files and pipes
_LEAST = 18  # columns, for text that wraps


class Shown(abc.ABC):
    """What a call gives, shown in a terminal, by rich and in a notebook alike: tables and lines, in order.

    Columns named in `spare` give way in a narrow terminal.
    """

    __slots__ = ()
    spare: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def parts(self) -> Sequence[Table | str]:
        """Return the tables and lines."""

    def __str__(self) -> str:
        return as_text(*self.parts(), spare=self.spare)

    def __repr__(self) -> str:
        """The same, since a prompt shows what a call gives by its repr."""
        return str(self)

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*self.parts())

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{html.escape(part)}</p>\n" if isinstance(part, str) else _table_as_html(part) for part in self.parts()
        )


def finite(value: object, *, digits: int = 17) -> object:
    """Return the same with None for what JSON has no number for, and numbers of so many digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each, digits=digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each, digits=digits) for each in value]
    return value


def new_table(title: str, columns: Sequence[str], *, whole: Sequence[str] = (), right: Sequence[str] = ()) -> Table:
    """Return a rich table without lines. What stands in the columns `whole` is never broken; others wrap at words."""
    table = _printable()(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        unbroken = column in whole or column in right
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=unbroken, min_width=None if unbroken else _LEAST)
    return table


@functools.cache
def _printable() -> type[Table]:
    """rich's table, which `print` shows too."""
    from rich.table import Table

    class Printable(Table):
        def __str__(self) -> str:
            return as_text(self)

        __repr__ = __str__

    return Printable


def as_text(*parts: Table | str, spare: Sequence[str] = ()) -> str:
    """Tables and lines for `print`: as wide as the terminal, or wider where a path needs it.

    Columns named in `spare` give way, the last first, where a table would be wider than that.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(no_color=True, force_terminal=False, highlight=False, markup=False)
    width = console.width if sys.stdout.isatty() else _NO_TERMINAL
    shown = [_narrowed(part, width, spare) if isinstance(part, Table) else part for part in parts]
    console.width = max([width, *(_needed(part) for part in shown if isinstance(part, Table))])
    with console.capture() as capture:
        for part in shown:
            if isinstance(part, Table) and part.title:  # a title would be as narrow as its table
                console.print(part.title, soft_wrap=True)
            console.print(_untitled(part), soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _needed(table: Table) -> int:
    """Return the least columns in which nothing that is to be whole is broken, with two after each."""
    from rich.cells import cell_len

    least = [_least(column, cell_len) for column in table.columns]
    return sum(least) + 2 * len(least)


def _least(column: Column, size: Callable[[str], int]) -> int:
    """Return the columns of text that a column of a table takes: those of its longest word, where it wraps."""
    texts = [str(each) for each in (column.header, *column.cells)]
    if column.no_wrap:
        return max(map(size, texts))
    words = max((size(word) for text in texts for word in text.split()), default=0)
    return max(words, min(max(map(size, texts)), _LEAST))


def _narrowed(table: Table, width: int, spare: Sequence[str]) -> Table:
    """Return a table without as many of the spare columns as it takes to fit; its title says which."""
    made, gone = copy.copy(table), []
    made.columns = list(table.columns)
    for name in reversed(spare):
        if _needed(made) <= width:
            break
        kept = [column for column in made.columns if column.header != name]
        gone += [name] if len(kept) < len(made.columns) else []
        # rich finds the last column, which needs no space behind it, by the place that a column knows
        made.columns = [dataclasses.replace(column, _index=at) for at, column in enumerate(kept)]
    if gone:
        made.title = f"{made.title}; left out to fit: {', '.join(reversed(gone))}"
    return made


def _untitled(part: Table | str) -> Table | str:
    """Return a table without its title, whose words are not broken."""
    from rich.cells import cell_len

    if isinstance(part, str):
        return part
    made = copy.copy(part)
    made.title = None
    made.columns = [dataclasses.replace(column, min_width=_least(column, cell_len)) for column in part.columns]
    return made


def _table_as_html(table: Table) -> str:
    """Return a table for notebooks. All text is escaped."""
    head = "".join(f"<th>{html.escape(str(column.header))}</th>" for column in table.columns)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>\n" for row in rows)
    caption = f"<caption>{html.escape(str(table.title))}</caption>" if table.title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a line for each row, after one with the names of the columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([" ".join(map(str, v)) if isinstance(v, tuple) else v for v in row])
    return buffer.getvalue()
