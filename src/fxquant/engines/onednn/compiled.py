"""The kernels as ops of our own, for graphs that torch.compile makes.

Inductor has forms of torch's ops for packed weights that are constants of its graph, and refuses others. An op that it
does not know it calls as it is. These take the integers themselves and keep the packed copy beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fxquant.engines.onednn.pack import pack_conv, pack_linear
from fxquant.engines.onednn.pairs import halves, overflows, twice
from fxquant.graph import torch_compat

# weight -> (what it was packed for, packed weight, zeros); lives as long as the weight
_packed: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _pack(
    weight: Tensor,
    scale: Tensor,
    zero_point: int,
    shape: tuple[int, ...],
    geometry: torch_compat.Geometry | None,
    wide: bool,
) -> tuple[object, ...]:
    key = (geometry, zero_point != 0, 0 if weight.is_inference() else weight._version)
    found = _packed.get(weight)
    if found is None or found[0] != key:
        given = halves(weight) if wide else weight
        if geometry is None:
            packed = pack_linear(given, shape)
        else:
            packed = pack_conv(given, scale, zero_point, geometry, shape)
        found = _packed[weight] = (key, packed, torch.zeros(scale.numel(), dtype=torch.int32, device=scale.device))
    return found[1], scale, found[2]


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
    wide: bool,
) -> Tensor:
    """`onednn.qlinear_pointwise`. `grids`: scale and zero point of the input, the output, the second tensor."""
    grid = (grids[0], int(grids[1]))
    wide = wide and overflows()
    x = twice(x, -1) if wide else x
    head = (x, *grid, *_pack(weight, weight_scale, grid[1], tuple(x.shape), None, wide))
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
    wide: bool,
) -> Tensor:
    """`onednn.qconv_pointwise`, or the one with a sum. `grids` as for `qlinear`."""
    geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
    grid = (grids[0], int(grids[1]))
    wide = wide and overflows()
    x = twice(x, 1, groups) if wide else x
    head = (x, *grid, *_pack(weight, weight_scale, grid[1], tuple(x.shape), geometry, wide))
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
