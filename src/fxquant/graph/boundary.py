"""Integers at the boundary: which inputs arrive and which outputs leave as plain integer tensors, on which grid.

real = (integer - zero_point) * scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fxquant.errors import StageError
from fxquant.graph.check_model import refuse_other
from fxquant.graph.grid import QParams
from fxquant.graph.paths import find_module
from fxquant.graph.region import Region, preparation_of, regions, stage_of
from fxquant.graph.region_parts import Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """By position. In a prepared region the values are quantizer ids, in a converted one paths of Grids.

    What `boundary_of` gives has QParams in their place.
    """

    inputs: Mapping[int, QParams | str] = field(default_factory=dict)
    outputs: Mapping[int, QParams | str] = field(default_factory=dict)

    def input(self, index: int) -> QParams:
        return _known(self.inputs, index, "input")

    def output(self, index: int) -> QParams:
        return _known(self.outputs, index, "output")


def _known(grids: Mapping[int, QParams | str], index: int, side: str) -> QParams:
    grid = grids.get(index)
    if not isinstance(grid, QParams):
        raise StageError(
            f"{side} {index} has no integer grid. Name it in {side}_quantized_indexes of prepare_fx, then convert."
        )
    return grid


def boundary_of(region: Region) -> Boundary:
    """Return the boundary of a region, empty if all of it is float."""
    boundary = preparation_of(region).boundary
    if not isinstance(boundary, Boundary):
        return Boundary()
    sides = (
        {index: _as_qparams(region, grid) for index, grid in grids.items()}
        for grids in (boundary.inputs, boundary.outputs)
    )
    return Boundary(inputs=next(sides), outputs=next(sides))


def _as_qparams(region: Region, grid: QParams | str) -> QParams | str:
    found = find_module(region, grid) if isinstance(grid, str) else None
    read = getattr(found, "qparams", None)
    return read() if read is not None else grid


def boundary_qparams(model: torch.nn.Module) -> Boundary:
    """Scale, zero point and dtype of the inputs and outputs of a converted model that are integers.

    `boundary_qparams(model).input(0).quantize(x)` makes an input for a model that was prepared with
    `input_quantized_indexes=[0]`; `.output(0).dequantize(y)` reads an output.

    Example:
        >>> fq.boundary_qparams(fq.quantize(model, loader)).inputs  # none are integers, unless asked for
        {}
    """
    refuse_other(model, "boundary_qparams")
    region = next((region for path, region in regions(model) if not path), None)
    if region is None or stage_of(region) is not Stage.CONVERTED:
        raise StageError("boundary_qparams needs a model from convert_fx: the grids are known after conversion.")
    return boundary_of(region)
