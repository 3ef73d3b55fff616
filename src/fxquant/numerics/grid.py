"""The grid of an activation in a converted model, as state: `scale` and `zero_point` are buffers.

It stands where the FakeQuant stood that found it, so prepared and converted models have one path for one quantizer. The
scale itself tells a tensor that has no grid:

    nan    the model was converted without data, and waits for its state_dict
    0      the tensor saw no data in calibration: it passes in float
    inf    it carries an additive mask, which a finite grid cannot hold: it passes in float
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fxquant.errors import StageError
from fxquant.graph.grid import QParams
from fxquant.numerics.buffers import KeepsDtypes, own_tensors, resize_to_loaded
from fxquant.numerics.checked_state import CheckedState

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16)
NO_DATA, MASK = 0.0, math.inf
OFF = {NO_DATA: "saw no data in calibration", MASK: "carries an additive mask (-inf or the dtype's minimum)"}


def why_off(scale: Tensor) -> str | None:
    """Tell why a tensor with this scale has no grid; None if it has one, or waits for it."""
    return OFF.get(float(scale.reshape(-1)[0]))


class Grid(KeepsDtypes, CheckedState):
    """q = clamp(round(x / scale) + zero_point, quant_min, quant_max), stored as `dtype`.

    With an `axis` there is a scale for each channel along it; how many there are, the data or a state_dict say.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(
        self,
        scale: Tensor,
        zero_point: Tensor,
        quant_min: int,
        quant_max: int,
        dtype: torch.dtype,
        axis: int | None = None,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.quant_min = quant_min
        self.quant_max = quant_max
        self.dtype = dtype
        with torch.inference_mode(False):  # an inference tensor could not be written to later
            self.register_buffer("scale", scale.detach().float().clone())
            self.register_buffer("zero_point", zero_point.detach().to(torch.int32).clone())

    def qparams(self) -> QParams:
        """Return the grid as plain numbers."""
        if not bool(((self.scale > 0) & (self.scale < math.inf)).all()):
            raise StageError(f"the tensor has no grid: it {why_off(self.scale) or 'waits for its state_dict'}.")
        single = self.axis is None
        return QParams(
            scale=float(self.scale) if single else self.scale.clone(),
            zero_point=int(self.zero_point) if single else self.zero_point.clone(),
            axis=self.axis,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            dtype=self.dtype,
        )

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in ("scale", "zero_point"):  # those of several grids may share memory, see share_memory
            destination[f"{prefix}{name}"] = destination[f"{prefix}{name}"].clone()

    def get_extra_state(self) -> Tensor:
        """Return the ends of the grid, so that the numbers of one of other bits are not taken."""
        return torch.tensor([self.quant_min, self.quant_max], dtype=torch.int32)

    def set_extra_state(self, state: Tensor) -> None:
        """They were compared before."""

    def fit(self, state_dict: dict[str, object], prefix: str) -> None:
        if self.axis is not None:
            resize_to_loaded(self, state_dict, prefix)
        for name, own in own_tensors(self).items():
            given = state_dict.get(prefix + name)
            if isinstance(given, Tensor):
                state_dict[prefix + name] = given.to(own.dtype)  # also where it is assigned, not copied

    def misfits(self, state_dict: dict[str, object], prefix: str) -> Iterator[str]:
        error = self._misfit(state_dict, prefix)
        if error is not None:
            yield f"{prefix.rstrip('.')}: {error}"

    def _misfit(self, state_dict: dict[str, object], prefix: str) -> str | None:
        """Tell why the numbers in a state dict cannot be this grid's."""
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

    def extra_repr(self) -> str:
        ends = f"{str(self.dtype).removeprefix('torch.')} {self.quant_min} to {self.quant_max}"
        return f"{ends}, scale={_shown(self.scale)}, zero_point={_shown(self.zero_point)}"


def _shown(numbers: Tensor) -> str:
    """Return a few numbers, or how many there are; those of a meta tensor are not known."""
    if numbers.is_meta or numbers.numel() > 8:
        return f"<{numbers.numel()} numbers{' on meta' * numbers.is_meta}>"
    return str(numbers.tolist())


def share_memory(grids: list[Grid]) -> None:
    """Put the numbers of several grids into one tensor, of which theirs are views.

    So a look at one piece of memory tells whether any of them was written to. Grids that are such views already stay.
    """
    fresh = [grid for grid in grids if grid.scale._base is None]
    with torch.inference_mode(False):
        for name in ("scale", "zero_point") if fresh else ():
            own = [getattr(grid, name) for grid in fresh]
            together = torch.cat([tensor.reshape(-1) for tensor in own])
            for grid, tensor, part in zip(fresh, own, together.split([tensor.numel() for tensor in own]), strict=True):
                grid._buffers[name] = part.view(tensor.shape)
