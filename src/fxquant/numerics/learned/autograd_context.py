"""What an autograd function keeps between its forward and its backward, typed."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Saved(Protocol):
    """The context of `torch.autograd.Function`; one that keeps numbers besides adds its own fields."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class SavedFactor(Saved, Protocol):
    """With a factor of the gradient."""

    factor: float
