"""A converted region that is moved to another float dtype: outside it has that dtype, inside it computes as before.

Integers, scales and kernels have no form in half or double precision. So the tensors of the region stay as they are,
float inputs are cast on their way in, and float results on their way out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fxquant.errors import StageError

Values = TypeVar("Values")


def own_dtype(graph: fx.Graph) -> torch.dtype:
    """Return the float dtype that a graph was captured in: that of its first float input."""
    for node in graph.nodes:
        dtype = getattr(node.meta.get("tensor"), "dtype", None)
        if node.op == "placeholder" and dtype is not None and dtype.is_floating_point:
            return dtype  # type: ignore[no-any-return]
    return torch.float32


def split_move(
    fn: Callable[[Tensor], Tensor], own: torch.dtype
) -> tuple[Callable[[Tensor], Tensor], torch.dtype | None]:
    """(fn without its cast, the dtype that it casts to), of what `Module.to` and the like do to each tensor.

    None if it does not cast.
    """
    other = torch.float32 if own == torch.float64 else torch.float64
    shown = fn(torch.zeros((), dtype=own, device="cpu"))
    if shown.dtype == own and fn(torch.zeros((), dtype=other, device="cpu")).dtype == other:
        return fn, None
    if not shown.dtype.is_floating_point:
        raise StageError(f"a converted model cannot be moved to {shown.dtype}; it computes in {own} and integers.")

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(shown.device)
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(shown.device)  # `Module.type` casts integers, too

    return move, shown.dtype


def cast_halves(values: Values, target: torch.dtype) -> Values:
    """Return the same with tensors of half precision in another dtype."""
    return cast(cast(values, torch.bfloat16, target), torch.float16, target)


def cast(values: Values, source: torch.dtype, target: torch.dtype) -> Values:
    """Return the same with tensors of one dtype in another."""
    made: Values = pytree.tree_map_only(Tensor, lambda x: x.to(target) if x.dtype == source else x, values)
    return made
