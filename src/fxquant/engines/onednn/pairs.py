"""Products of bytes on CPUs that sum them in pairs, in saturating int16: AVX2, and AVX512 without VNNI.

2 * 127 * 127 fits there, 2 * 255 * 127 does not. Where inputs and weights have more than 7 bits, the weight is taken
apart into two halves of at most 64 each, beside each other along the inputs, and each input is given twice:

    x w  =  x h + x (w - h)        h = w >> 1        2 * 255 * 64 fits

The sums are the same to the bit, for twice the products.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fxquant.graph import torch_compat

_MOST = 2**15 - 1
_BYTE = 128


def may_overflow(most: int, weights: int) -> bool:
    """Tell whether two products may leave int16: of inputs up to `most` and weights up to `weights`."""
    return 2 * most * weights > _MOST


def is_wide(most: int, weight: Tensor) -> bool:
    """Tell whether two products may, of inputs up to `most` and the integers of this weight, whatever its spec says."""
    if not weight.numel() or not may_overflow(most, _BYTE):
        return False
    least, greatest = weight.aminmax()
    return may_overflow(most, max(-int(least), int(greatest)))


@functools.cache
def overflows() -> bool:
    """Tell whether torch's kernels lose what leaves int16, on this CPU: tried once."""
    with torch_compat.unseen():
        return _try()


@torch_compat.on_plain_sizes
def _try() -> bool:
    inputs = 64
    x = torch.full((4, inputs), 255, dtype=torch.uint8)
    weight = torch.full((16, inputs), 127, dtype=torch.int8)
    scale, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int32)
    end: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
    ones = ([1, 1], [0, 0], [1, 1], 1)
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        found = [torch.ops.onednn.qlinear_pointwise.default(x, 1.0, 0, packed, scale, zeros, None, *end)]
        packed = torch.ops.onednn.qconv_prepack(weight[..., None, None], scale, 1.0, 0, *ones, None)
        image = x[..., None, None]
        found.append(torch.ops.onednn.qconv_pointwise.default(image, 1.0, 0, packed, scale, zeros, None, *ones, *end))
    except (RuntimeError, AttributeError):
        return True  # halves are right on any
    return any(bool((each != inputs * 255 * 127).any()) for each in found)


def halves(weight: Tensor) -> Tensor:
    """(outputs, 2 * inputs, ...): the two halves of a weight (outputs, inputs, ...)."""
    half = weight >> 1
    return torch.cat([half, weight - half], 1)


def twice(x: Tensor, axis: int, groups: int = 1) -> Tensor:
    """Return an input for such a weight: the channels of each group, and those again."""
    # by no op that a trace would fix the batch in
    return torch.cat([part for group in x.chunk(groups, axis) for part in (group, group)], axis)
