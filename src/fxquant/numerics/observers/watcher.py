"""What an algorithm keeps of a tensor in calibration, beside the ranges that observers find."""

from __future__ import annotations

import abc

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.numerics.switches import Switched


def shows_numbers(x: object) -> bool:
    """Tell whether there is something to see in a batch: a dense float tensor that holds values along axes."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout != torch.strided:
        return False
    return not x.is_meta and x.dim() > 0 and x.numel() > 0


class Watcher(Switched, abc.ABC):
    """Sees a tensor batch by batch, while it is `observing`.

    All that it keeps are buffers whose sizes do not depend on the data.
    """

    _is_impure = True  # its calls have no users, and dead code elimination is to leave them

    def __call__(self, *seen: object) -> None:
        if self.observing:
            super().__call__(*seen)

    @abc.abstractmethod
    def forward(self, x: Tensor) -> None:
        """See a batch. What is no float tensor of the shape that is meant is passed over."""

    @abc.abstractmethod
    def merge(self, other: Self) -> None:
        """Become what one would be that saw the data of both."""

    @abc.abstractmethod
    def fresh(self) -> Self:
        """Return one of its kind that has seen nothing."""
