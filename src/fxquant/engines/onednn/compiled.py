"""The kernels as ops of our own, for graphs that torch.compile makes.

Inductor has forms of torch's ops for packed weights that are constants of its graph, and refuses others. An op that it
does not know it calls as it is. These take the integers themselves and keep the packed copy beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fxquant.engines.onednn.kernels import Grid
from fxquant.engines.onednn.pack import pack_conv, pack_linear
from fxquant.engines.onednn.pairs import halves, is_wide, overflows, twice
from fxquant.graph import torch_compat

# weight -> (what it was packed for, whether in halves, packed weight, zeros); lives as long as the weight
_packed: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _head(
    x: Tensor, grid: Grid, weight: Tensor, scale: Tensor, geometry: torch_compat.Geometry | None, most: int
) -> tuple[object, ...]:
    """Return the first arguments of the op: the input, twice for a weight in halves, its grid, the packed weight."""
    axis, groups = (-1, 1) if geometry is None else (1, geometry[3])
    # inference tensors do not count writes
    key = object() if weight.is_inference() else (geometry, grid[1] != 0, most, weight._version)
    found = _packed.get(weight)
    if found is None or found[0] != key:
        in_halves = overflows() and is_wide(most, weight)
        given = halves(weight) if in_halves else weight
        shape = tuple((twice(x, axis, groups) if in_halves else x).shape)
        if geometry is None:
            packed = pack_linear(given, shape)
        else:
            packed = pack_conv(given, scale, grid[1], geometry, shape)
        zeros = torch.zeros(scale.numel(), dtype=torch.int32, device=scale.device)
        found = _packed[weight] = (key, in_halves, packed, zeros)
    return (twice(x, axis, groups) if found[1] else x, *grid, found[2], scale, found[3])


@torch.library.custom_op("fxquant::qlinear", mutates_args=())
def qlinear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    grids: list[float],
    dtype: torch.dtype,
    sum_name: str,
    tail_name: str,
    tail_args: list[float],
    algorithm: str,
    most: int,
) -> Tensor:
    """`onednn.qlinear_pointwise`. `grids`: scale and zero point of the input, the output, the second tensor."""
    grid = (grids[0], int(grids[1]))
    head = _head(x, grid, weight, weight_scale, None, most)
    out = (bias, grids[2], int(grids[3]), dtype)
    end = (tail_name, tail_args, algorithm)
    op = torch.ops.onednn.qlinear_pointwise
    if other is None:
        return op.default(*head, *out, *end)  # type: ignore[no-any-return]
    # an op must not write over what it was given; "sum" does
    second = (grids[4], int(grids[5]), sum_name, 1.0)
    return op.binary(*head, other.clone(), *out, *second, *end)  # type: ignore[no-any-return]


@qlinear.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    grids: list[float],
    dtype: torch.dtype,
    *tail: object,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


@torch.library.custom_op("fxquant::qconv", mutates_args=())
def qconv(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    grids: list[float],
    dtype: torch.dtype,
    tail_name: str,
    tail_args: list[float],
    algorithm: str,
    most: int,
) -> Tensor:
    """`onednn.qconv_pointwise`, or the one with a sum. `grids` as for `qlinear`."""
    geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
    grid = (grids[0], int(grids[1]))
    head = _head(x, grid, weight, weight_scale, geometry, most)
    out = (bias, stride, padding, dilation, groups, grids[2], int(grids[3]), dtype)
    end = (tail_name, tail_args, algorithm)
    if other is None:
        return torch.ops.onednn.qconv_pointwise.default(*head, *out, *end)  # type: ignore[no-any-return]
    other = other.expand(x.shape[0], *other.shape[1:]).clone(memory_format=torch.channels_last)
    second = (grids[4], int(grids[5]), "sum", 1.0)
    return torch.ops.onednn.qconv2d_pointwise.binary(*head, other, *out, *second, *end)  # type: ignore[no-any-return]


@qconv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    other: Tensor | None,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    grids: list[float],
    dtype: torch.dtype,
    *tail: object,
) -> Tensor:
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, s, p, d, k in zip(x.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
    ]
    made = x.new_empty((x.shape[0], weight.shape[0], *sizes), dtype=dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 2 else made
