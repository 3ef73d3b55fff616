"""The linear kernel as an op of our own, for graphs that torch.compile makes.

Inductor has a form of torch's op for weights that are constants of its graph, and refuses others. An op that it does
not know it calls as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fxquant::qlinear", mutates_args=())
def qlinear(
    x: Tensor,
    scale: float,
    zero_point: int,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    grids: list[float],
    dtype: torch.dtype,
    sum_name: str,
    tail_name: str,
    tail_args: list[float],
    algorithm: str,
) -> Tensor:
    """`onednn.qlinear_pointwise`, with or without a second tensor. `grids`: of the output, of that tensor."""
    head = (x, scale, zero_point, weight, weight_scale, weight_zero_point)
    end = (tail_name, tail_args, algorithm)
    op = torch.ops.onednn.qlinear_pointwise
    if other is None:
        return op.default(*head, bias, grids[0], int(grids[1]), dtype, *end)  # type: ignore[no-any-return]
    # an op must not write over what it was given; "sum" does
    second = (grids[2], int(grids[3]), sum_name, 1.0)
    result = op.binary(*head, other.clone(), bias, grids[0], int(grids[1]), dtype, *second, *end)
    assert isinstance(result, Tensor)
    return result


@qlinear.register_fake
def _(x: Tensor, *args: Any) -> Tensor:
    weight_scale, dtype = args[3], args[8]
    return x.new_empty((*x.shape[:-1], weight_scale.numel()), dtype=dtype)
