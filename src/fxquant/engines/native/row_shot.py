"""Programs for the rows of a batch that are taken together, on tensors whose sizes are known: a call for each piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.engines.native.calls import Place
from fxquant.engines.native.plain import returned
from fxquant.engines.native.program import Program
from fxquant.engines.native.results import plain
from fxquant.engines.native.shot import is_one_call
from fxquant.engines.native.together import Together, filled


class RowShot:
    """Runs programs on the rows of tensors like those that it was made for; `places` are those of placeholders."""

    def __init__(self, programs: Sequence[Program], rows: Together, places: Sequence[int]) -> None:
        first = programs[0]
        self.signed = first.signed
        self._graph, self._output, self._batch = first.graph, first.output.args[0], rows.batch
        self._end = rows.pieces[-1].end
        results = [result for each in first.results.values() for result in each]
        self._results = [(result.node, (self._end, *result.sizes[1:]), result.dtype) for result in results]
        self._pieces = []
        for program, piece in zip(programs, rows.pieces, strict=True):
            (level,) = program.levels
            index = dict(zip(program.placeholders, places, strict=True))
            given = [(slot, index[made.node]) for slot, made in program.imports[level]]
            slots = {result.node.name: result.slot for result in program.results[level]}
            self._pieces.append((program, level, piece, given, [slots[result.node.name] for result in results]))

    def __call__(self, values: Sequence[Any]) -> object:
        """Return what the graph returns."""
        made = [torch.empty(sizes, dtype=dtype, device="cpu") for _, sizes, dtype in self._results]
        for program, level, piece, given, results in self._pieces:
            slots, alive = program.slot_array(), []
            for slot, place in given:
                value, first = values[place], piece.first
                if piece.end > self._batch:
                    value, first = filled(value, first, piece.end), 0
                    alive.append(value)
                slots[slot] = value.data_ptr() + first * value.stride(0) * value.itemsize
            for slot, tensor in zip(results, made, strict=True):
                slots[slot] = tensor.data_ptr() + piece.first * tensor.stride(0) * tensor.itemsize
            threads = program.threads(piece.samples)
            if threads > 1:
                program.run_level(level, slots, piece.samples, threads)
            else:
                program.run_alone(level, slots, piece.samples)
        if self._end > self._batch:
            made = [tensor[: self._batch] for tensor in made]
        env = {node: tensor for (node, _, _), tensor in zip(self._results, made, strict=True)}
        return returned(self._graph, plain(self._output, env))


def row_shot(
    programs: Sequence[Program], rows: Together, places: Sequence[object], values: Sequence[object]
) -> RowShot | None:
    """Make what answers calls like this one; None if a piece is more than one call of machine code."""
    if rows.whole or not all(isinstance(value, Tensor) and value.is_contiguous() for value in values):
        return None
    found = [place.index for place in places if isinstance(place, Place)]
    if len(found) != len(places):
        return None
    for program, piece in zip(programs, rows.pieces, strict=True):
        if not is_one_call(program, dict(zip(program.placeholders, range(len(found)), strict=True)), piece.inputs):
            return None
        results = [result for each in program.results.values() for result in each]
        if any(result.back is not None or result.order or result.axis for result in results):
            return None
        if not {result.node for result in results}.issuperset(program.output.all_input_nodes):
            return None
    return RowShot(programs, rows, found)
