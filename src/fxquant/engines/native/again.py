"""Calls like earlier ones: what answers them, while nothing has changed that the region depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from fxquant.engines.native.calls import PLAIN, is_plain
from fxquant.engines.native.inputs import LISTS, leaves
from fxquant.engines.native.program import Program
from fxquant.engines.native.row_shot import RowShot, row_shot
from fxquant.engines.native.shot import Rerun, Shot, shot
from fxquant.engines.native.together import Together
from fxquant.engines.native.unchanged import Unchanged, unchanged
from fxquant.engines.onednn.kernels import has_nan
from fxquant.graph.standing import Standing

Signature: TypeAlias = tuple[Any, ...]
_MOST = 64  # signatures


class Again:
    """Shots by the calls that they are for: dtypes, sizes with the batch, strides; values of other arguments."""

    def __init__(self) -> None:
        self._shots: dict[Signature, Shot | Rerun | RowShot] = {}
        self._unchanged: Unchanged | None = None
        self._blind = False  # machine code cannot look

    def answer(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Return the answer to a call like an earlier one, if all is as it was then; else NotImplemented."""
        if self._unchanged is None:
            return NotImplemented
        values = (*args, *kwargs.values()) if kwargs else args
        signature = _signature(values, kwargs)
        shot = None if signature is None else self._shots.get(signature)
        if shot is None or not self._unchanged():
            return NotImplemented
        return NotImplemented if shot.signed and any(map(_has_nan, leaves(values))) else shot(values)

    def keep(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        made: tuple[Sequence[Program], Together | None, Sequence[object]],
        standing: Callable[[], Standing | None],
    ) -> None:
        """Remember the programs that answered a call, for what rows if they took some together, and the inputs' places.

        `standing` tells what the region depended on then.
        """
        values = (*args, *kwargs.values())
        signature = _signature(values, kwargs)
        if signature is None or self._blind:
            return
        programs, rows, places = made
        found = shot(programs[0], places, values) if rows is None else row_shot(programs, rows, places, values)
        if found is None:
            return
        if self._unchanged is None or signature in self._shots:  # something has changed that makes no difference
            facts = standing()
            self._unchanged = None if facts is None else unchanged(programs[0].library, facts)
            self._blind = self._unchanged is None
            self._shots.clear()
        if len(self._shots) >= _MOST:
            self._shots.clear()
        self._shots[signature] = found


def _has_nan(value: object) -> bool:
    return isinstance(value, Tensor) and has_nan(value)


def _signature(values: Sequence[object], kwargs: dict[str, object]) -> Signature | None:
    """Return what decides what becomes of a call; None if a value is neither a plain tensor nor a plain value."""
    made = []
    for value in values:
        fact = _fact(value)
        if fact is None:
            return None
        made.append(fact)
    if kwargs:
        made.append(tuple(kwargs))
    return tuple(made)


def _fact(value: object) -> Signature | None:
    kind = type(value)
    if kind is Tensor:
        assert isinstance(value, Tensor)
        return (value.dtype, value.shape, value.stride()) if is_plain(value) else None
    if isinstance(value, PLAIN):
        return kind, value
    if kind in LISTS or kind is dict:
        within = list(map(_fact, value.values() if isinstance(value, dict) else value))  # type: ignore[call-overload]
        if None in within:
            return None
        return kind, tuple(within), tuple(value) if isinstance(value, dict) else ()
    return None
