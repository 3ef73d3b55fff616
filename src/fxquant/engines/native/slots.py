"""Tensors that Python and a program hand to each other: their addresses are in slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from fxquant.engines.native.values import Buffer, View


@dataclass(kw_only=True, slots=True)
class Export:
    """A native tensor that Python gets: written to a slot, in the order of `dims`."""

    view: View
    slot: int
    dims: tuple[int, ...]
    axis: int = 0  # of the batch
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """A tensor that Python hands over, dense; pictures of many channels with the channels last."""

    node: fx.Node
    buffer: Buffer
    dims: tuple[int, ...]  # of a sample, or of all that is the same for each
    dtype: torch.dtype
    channels_last: bool
    same: bool = False  # for all samples

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def fits(self, tensor: Tensor, batch: int) -> bool:
        """Tell whether a tensor is of the size and dtype that a program takes."""
        if tensor.dtype != self.dtype:
            return False
        return tensor.shape == self.dims if self.same else tensor.shape == (batch, *self.dims)
