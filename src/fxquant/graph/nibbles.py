"""Integers of four bits and less, two to a byte.

[rows, ...] int8 or uint8  ->  [rows, ceil(n / 2)] uint8        n values of a row, the first in the low half
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def pack(values: Tensor) -> Tensor:
    """Return the rows of a tensor along its first dimension, packed."""
    rows = values.reshape(values.shape[0], -1)
    if rows.shape[1] % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    halves = rows.view(torch.uint8) & 15
    return halves[:, 0::2] | (halves[:, 1::2] << 4)


def unpack(packed: Tensor, tail: Sequence[int], signed: bool) -> Tensor:
    """Return the inverse, for rows of the shape `tail`; any number of dimensions may come before the last one."""
    count = math.prod(tail)
    if packed.dtype != torch.uint8 or packed.dim() < 2 or packed.shape[-1] != -(-count // 2):
        raise ValueError(f"{packed.dtype} of the shape {tuple(packed.shape)} are no rows of {count}, two to a byte")
    halves = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :count]
    if signed:
        halves = (halves ^ 8).to(torch.int8) - 8
    return halves.reshape(*packed.shape[:-1], *tail)
