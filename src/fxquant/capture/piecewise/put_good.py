"""Regions that are put into a model one by one, and taken out again if they change what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A region, put in the place of a module; or regions in the place of some of its parameters (`names`)."""

    path: str
    module: nn.Module
    put: Callable[[], None]
    undo: Callable[[], None]
    names: tuple[str, ...] = ()


def put_good(pieces: list[Piece], difference: Callable[[], str | None], failed: Callable[[Piece, str], None]) -> None:
    """Put as many pieces as keep the outputs; the others are found by halving, and given to `failed` with the reason.

    `difference` compares the outputs as the pieces stand.
    """
    if not pieces:
        return
    for piece in pieces:
        piece.put()
    found = difference()
    if found is None:
        return
    for piece in reversed(pieces):
        piece.undo()
    if len(pieces) > 1:
        middle = len(pieces) // 2
        put_good(pieces[:middle], difference, failed)
        put_good(pieces[middle:], difference, failed)
    else:
        failed(pieces[0], found)
