"""Weights in the layouts of torch's oneDNN ops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.graph import torch_compat

_APART = 5  # no two usual batch sizes are that far from each other


def pack_linear(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the weight of a linear for an input of this shape."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, [math.prod(shape[:-1]), shape[-1]])
    return packed


def pack_conv(
    weight: Tensor, scale: Tensor, zero_point: int, geometry: torch_compat.Geometry, shape: tuple[int, ...]
) -> Tensor:
    """Return the weight of a convolution for an input of this shape and zero point.

    Inputs with and without a zero point need different layouts, and one that does not fit is changed in every call.
    torch looks layouts up by the shape and not by the zero point, so the batch is made to tell them apart.
    """
    batch, *sizes = shape
    if zero_point:
        batch += _APART
    packed: Tensor = torch.ops.onednn.qconv_prepack(weight, scale, 1.0, zero_point, *geometry, [batch, *sizes])
    return packed
