"""A bar for work that takes batches one by one. Where stderr is no terminal, nothing is shown."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def following(data: Iterable[T], what: str, *, wanted: bool, most: int | None = None) -> Iterator[T]:
    """Yield the first `most` batches of data, with a bar and the time that is left while they are used."""
    total = count_batches(data)
    if most is not None:
        total = most if total is None else min(total, most)
    if not wanted or not sys.stderr.isatty():
        yield from _first(data, most)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for batch in _first(data, most):
            yield batch
            bar.advance(task)


def count_batches(data: Iterable[object]) -> int | None:
    """Return how many batches there are, where that is known: a DataLoader has a `__len__` that raises for a stream."""
    count = operator.length_hint(data, -1)
    return None if count < 0 else count


def _first(data: Iterable[T], most: int | None) -> Iterator[T]:
    for count, batch in enumerate(data):
        if most is not None and count >= most:
            return
        yield batch


@contextmanager
def steps(what: str, count: int, *, wanted: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar for work of a few steps: call what it gives with a name when the next one begins."""
    if not wanted or not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=count)

        def begin(name: str) -> None:
            bar.update(task, description=name, advance=1)

        yield begin
