"""The grid of an activation in a converted model, as state: `scale` and `zero_point` are buffers.

It stands where the FakeQuant stood that found it, so prepared and converted models have one path for one quantizer. The
scale itself tells a tensor that has no grid:

    nan    the model was converted without data, and waits for its state_dict
    0      the tensor saw no data in calibration: it passes in float
    inf    it carries an additive mask, which a finite grid cannot hold: it passes in float
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.core.boundary import QParams
from fxquant.errors import StageError
from fxquant.numerics.buffers import own_tensors, restore_dtypes
from fxquant.numerics.counted import Counted

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16)
NO_DATA, MASK = 0.0, math.inf
OFF = {NO_DATA: "saw no data in calibration", MASK: "carries an additive mask (-inf or the dtype's minimum)"}


class Grid(Counted):
    """q = clamp(round(x / scale) + zero_point, quant_min, quant_max), stored as `dtype`."""

    scale: Tensor
    zero_point: Tensor

    def __init__(self, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.quant_min = quant_min
        self.quant_max = quant_max
        self.dtype = dtype
        with torch.inference_mode(False):  # an inference tensor does not count writes
            self.register_buffer("scale", scale.detach().float().clone())
            self.register_buffer("zero_point", zero_point.detach().to(torch.int32).clone())

    def qparams(self) -> QParams:
        """The grid as plain numbers."""
        scale = float(self.scale)
        if not 0 < scale < math.inf:
            raise StageError(f"the tensor has no grid: it {OFF.get(scale, 'waits for its state_dict')}.")
        return QParams(
            scale=scale,
            zero_point=int(self.zero_point),
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            dtype=self.dtype,
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in ("scale", "zero_point"):  # those of several grids may share memory, see share_counter
            destination[f"{prefix}{name}"] = destination[f"{prefix}{name}"].clone()

    def get_extra_state(self) -> Tensor:
        """The ends of the grid, so that the numbers of one of other bits are not taken."""
        return torch.tensor([self.quant_min, self.quant_max], dtype=torch.int32)

    def set_extra_state(self, state: Tensor) -> None:
        """They were compared before."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        error = self._misfit(state_dict, prefix)
        if error is not None:
            args[-1].append(f"{prefix.rstrip('.')}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)
        restore_dtypes(self, {"scale": self.scale.float(), "zero_point": self.zero_point.to(torch.int32)})

    def _misfit(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Why the numbers in a state dict cannot be this grid's."""
        ends, scale, zero = (state_dict.get(f"{prefix}{name}") for name in ("_extra_state", "scale", "zero_point"))
        own = [self.quant_min, self.quant_max]
        if isinstance(ends, Tensor) and ends.dim() != 1:
            return "the state is of a model that was not converted yet. Load it into the prepared model, then convert."
        if isinstance(ends, Tensor) and ends.tolist() != own:
            return f"the state has integers from {ends[0]} to {ends[1]} there, this model {own[0]} to {own[1]}."
        if isinstance(scale, Tensor) and not scale.is_meta and bool((scale < 0).any()):
            return f"a scale is negative: {scale.tolist()}."
        if isinstance(zero, Tensor) and not zero.is_meta and bool(((zero < own[0]) | (zero > own[1])).any()):
            return f"the zero point {zero.tolist()} is outside of the integers from {own[0]} to {own[1]}."
        return None

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before = own_tensors(self)
        super()._apply(fn, recurse)
        restore_dtypes(self, before)
        return self

    def extra_repr(self) -> str:
        ends = f"{str(self.dtype).removeprefix('torch.')} {self.quant_min} to {self.quant_max}"
        return f"{ends}, scale={self.scale.tolist()}, zero_point={self.zero_point.tolist()}"


def share_counter(grids: list[Grid]) -> None:
    """Put the numbers of several grids into one tensor, of which theirs are views: torch counts writes to all as one.

    So a look at one counter tells whether any of them was written to. Grids that are such views already stay.
    """
    fresh = [grid for grid in grids if grid.scale._base is None]
    with torch.inference_mode(False):
        for name in ("scale", "zero_point") if fresh else ():
            together = torch.stack([grid._buffers[name] for grid in fresh])  # type: ignore[misc]
            for index, grid in enumerate(fresh):
                grid._buffers[name] = together[index]
