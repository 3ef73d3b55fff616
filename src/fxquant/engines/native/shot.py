"""A program that is one segment of machine code, for tensors of sizes and strides that are known: one call.

All that does not depend on the tensors themselves is found out once. Python's own code and objects are in no near cache
when a call begins, so what counts is how many of them a call touches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.engines.native.inputs import batch_of
from fxquant.engines.native.plain import returned
from fxquant.engines.native.program import Program
from fxquant.engines.native.results import plain


class Shot:
    """Runs a program on tensors like those that it was made for."""

    def __init__(self, program: Program, inputs: Sequence[Tensor]) -> None:
        (level,) = program.levels
        batch = batch_of(inputs)
        self.signed = program.signed
        self._program, self._level, self._batch = program, level, batch
        self._function = program.functions[level]
        self._constants = program.constants.ctypes.data
        self._array = program.slot_array
        places = {node: place for place, node in enumerate(program.placeholders)}
        self._given = [(slot, places[made.node]) for slot, made in program.imports[level]]
        self._results = program.results[level]
        self._sizes = [((batch, *result.sizes), result.dtype, result.slot) for result in self._results]
        self._one = self._results[0] if program.output.args[0] is self._results[0].node else None

    def __call__(self, inputs: Sequence[Tensor]) -> object:
        """Return what the graph returns."""
        slots = self._array()
        for slot, place in self._given:
            slots[slot] = inputs[place].data_ptr()
        made = []
        for sizes, dtype, slot in self._sizes:
            tensor = torch.empty(sizes, dtype=dtype, device="cpu")
            slots[slot] = tensor.data_ptr()
            made.append(tensor)
        program, batch = self._program, self._batch
        threads = program.threads(batch)
        if threads > 1:
            program.run_level(self._level, slots, batch, threads)
        else:
            arena = program.take_arena()
            self._function(arena.address, 0, self._constants, ctypes.addressof(slots), 0, batch, 1, 0, 0)
            program.free.append(arena)
        if self._one is not None:
            return self._one.put(made[0])
        env = {result.node: result.put(tensor) for result, tensor in zip(self._results, made, strict=True)}
        return returned(program.graph, plain(program.output.args[0], env))


def shot(program: Program, inputs: Sequence[Tensor]) -> Shot | None:
    """Make the shot of a program for tensors like these; None if it takes more than one call of machine code."""
    batch = batch_of(inputs)
    if len(program.levels) != 1 or program.outside or (program.checks and batch not in program.checked):
        return None
    (level,) = program.levels
    made = {result.node for result in program.results[level]}
    if not made or not made.issuperset(program.output.all_input_nodes):
        return None
    places = {node: place for place, node in enumerate(program.placeholders)}
    for _, given in program.imports[level]:
        tensor = inputs[places[given.node]] if given.node in places else None
        if tensor is None or not given.fits(tensor, batch) or not tensor.is_contiguous(memory_format=given.layout):
            return None
    return Shot(program, inputs)
