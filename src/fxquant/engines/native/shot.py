"""A program for calls whose sizes, strides and other values are known.

    Shot     the program is one segment of machine code, and one call of it is all there is to do
    Rerun    it is more than that

All that does not depend on the tensors themselves is found out once. Python's own code and objects are in no near cache
when a call begins, so what counts is how many of them a call touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.engines.native.calls import Place
from fxquant.engines.native.inputs import batch_of
from fxquant.engines.native.plain import returned
from fxquant.engines.native.program import Program, look_at
from fxquant.engines.native.results import plain


class Shot:
    """Runs a program on values like those that it was made for. `places` are those of its placeholders."""

    def __init__(self, program: Program, places: dict[fx.Node, int], values: Sequence[Any]) -> None:
        (level,) = program.levels
        batch = batch_of(values)
        self.signed = program.signed
        self._program, self._level, self._batch = program, level, batch
        self._array = program.slot_array
        self._given = [(slot, places[made.node]) for slot, made in program.imports[level] if made.node in places]
        fixed = [(slot, made.node) for slot, made in program.imports[level] if made.node not in places]
        self._fixed = [(slot, program.fixed[node].data_ptr()) for slot, node in fixed]
        self._results = program.results[level]
        self._sizes = [((batch, *result.sizes), result.dtype, result.slot) for result in self._results]
        self._one = self._results[0] if program.output.args[0] is self._results[0].node else None
        self._through = [(node, places[node]) for node in program.output.all_input_nodes if node in places]

    def __call__(self, values: Sequence[Any]) -> object:
        """Return what the graph returns."""
        slots = self._array()
        for slot, place in self._given:
            slots[slot] = values[place].data_ptr()
        for slot, address in self._fixed:
            slots[slot] = address
        program, batch = self._program, self._batch
        flag = program.raise_flag(slots)
        made = []
        for sizes, dtype, slot in self._sizes:
            tensor = torch.empty(sizes, dtype=dtype, device="cpu")
            slots[slot] = tensor.data_ptr()
            made.append(tensor)
        threads = program.threads(batch)
        if threads > 1:
            program.run_level(self._level, slots, batch, threads)
        else:
            program.run_alone(self._level, slots, batch)
        if flag is not None:
            look_at(flag)
        if self._one is not None:
            return self._one.put(made[0])
        env = {result.node: result.put(tensor) for result, tensor in zip(self._results, made, strict=True)}
        env.update((node, values[place]) for node, place in self._through)
        return returned(program.graph, plain(program.output.args[0], env))


class Rerun:
    """Runs a program on values like those that it was made for."""

    def __init__(self, program: Program, places: Sequence[object], values: Sequence[object]) -> None:
        self.signed = program.signed
        self._program, self._batch = program, batch_of(values)
        self._places = [
            (isinstance(place, Place), place.index if isinstance(place, Place) else place) for place in places
        ]

    def __call__(self, values: Sequence[Any]) -> object:
        """Return what the graph returns."""
        given = [values[place] if is_place else place for is_place, place in self._places]  # type: ignore[call-overload]
        return self._program.answer(given, self._batch)


def shot(program: Program, places: Sequence[object], values: Sequence[object]) -> Shot | Rerun:
    """Make what answers calls like this one; `places` are the values of the placeholders, or where these are."""
    found = {
        node: place.index for node, place in zip(program.placeholders, places, strict=True) if isinstance(place, Place)
    }
    fits = is_one_call(program, found, values)
    return Shot(program, found, values) if fits else Rerun(program, places, values)


def is_one_call(program: Program, places: dict[fx.Node, int], values: Sequence[object]) -> bool:
    """Tell whether all that a program does is one call of machine code, on tensors as they are."""
    batch = batch_of(values)
    if len(program.levels) != 1 or program.outside or (program.checks and batch not in program.checked):
        return False
    (level,) = program.levels
    made = {result.node for result in program.results[level]}
    if not made or not (made | set(places)).issuperset(program.output.all_input_nodes):
        return False
    for _, given in program.imports[level]:
        tensor = values[places[given.node]] if given.node in places else program.fixed.get(given.node)
        if not isinstance(tensor, Tensor) or not given.fits(tensor, batch):
            return False
        if not tensor.is_contiguous(memory_format=given.layout):
            return False
    return True
