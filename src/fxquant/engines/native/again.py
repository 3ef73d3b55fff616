"""Calls like earlier ones: what answers them, while nothing has changed that the region depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from fxquant.engines.native.calls import is_plain
from fxquant.engines.native.program import Program
from fxquant.engines.native.shot import Shot, shot
from fxquant.engines.native.unchanged import Unchanged, unchanged
from fxquant.engines.onednn.kernels import has_nan
from fxquant.graph.standing import Standing

Signature = tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]
_MOST = 64  # signatures


class Again:
    """Shots by the tensors that they are for: dtypes, sizes with the batch, strides."""

    def __init__(self) -> None:
        self._shots: dict[Signature, Shot] = {}
        self._unchanged: Unchanged | None = None
        self._blind = False  # machine code cannot look

    def answer(self, inputs: tuple[object, ...]) -> object:
        """Return the answer to a call like an earlier one, if all is as it was then; else NotImplemented."""
        if self._unchanged is None or (signature := _signature(inputs)) is None:
            return NotImplemented
        shot = self._shots.get(signature)
        if shot is None or not self._unchanged():
            return NotImplemented
        tensors = cast("tuple[Tensor, ...]", inputs)
        return NotImplemented if shot.signed and any(map(has_nan, tensors)) else shot(tensors)

    def keep(self, inputs: tuple[object, ...], program: Program, standing: Callable[[], Standing | None]) -> None:
        """Remember a program that answered a call; `standing` tells what the region depended on then."""
        signature = _signature(inputs)
        if signature is None or self._blind:
            return
        made = shot(program, cast("tuple[Tensor, ...]", inputs))
        if made is None:
            return
        if self._unchanged is None or signature in self._shots:  # something has changed that makes no difference
            facts = standing()
            self._unchanged = None if facts is None else unchanged(program.library, facts)
            self._blind = self._unchanged is None
            self._shots.clear()
        if len(self._shots) >= _MOST:
            self._shots.clear()
        self._shots[signature] = made


def _signature(inputs: Sequence[object]) -> Signature | None:
    """Return what a tensor has that decides what becomes of it; None if some input is no plain tensor."""
    made = []
    for value in inputs:
        if type(value) is not Tensor or not is_plain(value):
            return None
        made.append((value.dtype, value.shape, value.stride()))
    return tuple(made)
