"""Defaults of a graph's arguments, where a run without data takes what the file records in their place.

A call may leave the argument out. What it does then is not what was looked at, unless the first thing that a graph does
with the argument is a check that no default passes.
"""

from __future__ import annotations

from torch import fx

from fxquant.archive.check_python import leaves_of
from fxquant.capture import guards
from fxquant.errors import ArchiveError

_CHECKS = (guards.check_fixed, guards.check_given)


def check_default(node: fx.Node, taken: object) -> None:
    """Raise an ArchiveError if a placeholder has a default besides `taken` that a graph computes with."""
    default = node.args[0] if node.args else None
    if not leaves_of(default) or leaves_of(default) == [None]:
        return
    if default is taken or (
        type(default) is type(taken) and isinstance(default, (bool, int, str)) and default == taken
    ):
        return
    first = next(iter(node.users), None)
    if first is not None and first.target not in _CHECKS:
        raise ArchiveError(f"its default is {str(default)[:40]!r}, and the file records another value.")
