"""From what a program wrote to what its caller gets."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.engines.native.slots import Export

_SMALL = 1 << 20  # elements, above which several threads copy a result faster
Env: TypeAlias = dict[fx.Node, Any]  # what nodes gave so far in a run


def plain(value: Any, env: Env) -> Any:
    """Return the argument of an output node with the values of its nodes, in containers that are not fx's."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, dict):
        return {key: plain(each, env) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each, env) for each in value]
    if isinstance(value, slice):
        return slice(*(plain(each, env) for each in (value.start, value.stop, value.step)))
    if isinstance(value, tuple):
        made = tuple(plain(each, env) for each in value)
        return type(value)(*made) if hasattr(value, "_fields") else made
    return value


def laid_out(tensor: Tensor) -> Tensor:
    """Return a result as a contiguous tensor.

    A small one is copied by this thread alone: for milliseconds after a copy, the threads of torch's pool look for more
    work, on the cores that the threads of the next call want.
    """
    if tensor.is_contiguous() or tensor.numel() > _SMALL:
        return tensor.contiguous()
    return torch.from_numpy(np.ascontiguousarray(tensor.numpy()))


class Result:
    """How a native tensor becomes one of torch's. Little is left to do at a call, when the caches are cold."""

    def __init__(
        self,
        node: fx.Node,
        *,
        slot: int,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        axis: int = 0,
        back: tuple[int, ...] | None = None,
    ) -> None:
        self.node, self.slot, self.sizes, self.dtype = node, slot, sizes, dtype
        self.axis = axis  # of the batch
        self.back = back  # the order of axes that makes of what is written what the graph has; None if it is that
        self.order: tuple[int, ...] = ()  # of axes in memory, as the graph's result has them

    @staticmethod
    def of(node: fx.Node, export: Export) -> Result:
        natural = export.dims == tuple(range(len(export.dims))) and export.axis == 0
        return Result(
            node,
            slot=export.slot,
            sizes=tuple(export.view.shape[axis] for axis in export.dims),
            dtype=export.dtype,
            axis=export.axis,
            back=None if natural else (0, *(1 + export.dims.index(axis) for axis in range(len(export.dims)))),
        )

    def lie(self, tensor: Tensor) -> Tensor:
        """Return the tensor with its axes in that order."""
        if not self.order:
            return laid_out(tensor)
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return laid_out(tensor.permute(self.order)).permute(back)

    def place(self, tensor: Tensor) -> Tensor:
        """Return what a program wrote, a dense tensor, with the axes of the graph's result."""
        return tensor if self.back is None else tensor.permute(self.back).movedim(0, self.axis)

    def put(self, tensor: Tensor) -> Tensor:
        """Return the same as the caller gets it."""
        if self.back is None and not self.order:
            return tensor
        return self.lie(self.place(tensor))
