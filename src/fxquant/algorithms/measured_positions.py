"""Positions of power-of-two scales by what they do to the outputs of the model, on inputs that calibration kept.

What it keeps is handed to the pass that chooses positions (passes/solve_positions.py), which so can measure moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fxquant.algorithms.replay import Chunk
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.interpret import PlainInterpreter
from fxquant.graph.preparation import FloatCalls
from fxquant.graph.region import Region, preparation_of
from fxquant.passes.look_again import kept_inputs, watch_inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPositions(Algorithm):
    """Try moves of scales, at most `tries` of them, and keep those that bring the outputs nearer to the float model's.

    They are measured on `samples` inputs. Only for targets with limits between positions; all limits hold.
    """

    samples: int = 4
    tries: int = 300

    def __post_init__(self) -> None:
        if self.samples < 1 or self.tries < 0:
            given = f"samples={self.samples}, tries={self.tries}"
            raise ConfigError(f"MeasuredPositions({given}): expected samples from 1 on, tries from 0 on.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_inputs(region) if preparation_of(region).positions else ()

    def adapt(self, region: Region, context: Context) -> None:
        """Run the graph while it is in float: later, biases make up for weights that are rounded."""
        calls = _some(kept_inputs(region), self.samples) if context.hardware.positions else []
        if calls:
            with torch.no_grad():
                outputs = [PlainInterpreter(region).run(*call, enable_io_processing=False) for call in calls]
            preparation_of(region).float_calls = FloatCalls(
                calls=tuple(calls), outputs=tuple(outputs), tries=self.tries
            )


def _some(calls: list[Chunk], samples: int) -> list[tuple[object, ...]]:
    """So many samples: rows of calls with one tensor, else whole calls."""
    found: list[tuple[Any, ...]] = []
    for values in calls:
        tensors = [value for value in values if isinstance(value, Tensor)]
        inside = sum(isinstance(value, Tensor) for value in tree_leaves(values)) - len(tensors)
        if inside or len(tensors) != 1 or not tensors[0].dim():
            found.append(tuple(values))
            continue
        for row in range(len(tensors[0])):
            found.append(tuple(value[row : row + 1] if isinstance(value, Tensor) else value for value in values))
    step = max(1, len(found) // samples)
    return found[::step][:samples]
