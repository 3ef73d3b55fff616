"""Pooling by maxima gives what torch's pooling gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxquant.engines.max_pool import max_pool2d

KERNELS: list[Any] = [1, 2, 3, (5, 2)]
STRIDES: list[Any] = [None, 1, 2, (3, 1)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("size", [(7, 9), (12, 12)])
def test_all_settings(dtype: torch.dtype, size: tuple[int, int]) -> None:
    info = torch.iinfo(dtype)
    q = torch.randint(info.min, info.max + 1, (2, 5, *size), dtype=dtype).to(memory_format=torch.channels_last)
    tried = 0
    for kernel, stride, padding, dilation, ceil in itertools.product(KERNELS, STRIDES, (0, 1), (1, 2), (False, True)):
        if (padding and kernel in (1, (5, 2))) or (kernel == (5, 2) and dilation == 2):
            continue  # more than half the kernel, or a kernel larger than the picture
        expected = F.max_pool2d(q.float(), kernel, stride, padding, dilation, ceil)
        pooled = max_pool2d(q, kernel, stride, padding, dilation, ceil)
        if pooled is not None:
            tried += 1
            assert torch.equal(pooled.float(), expected), (kernel, stride, padding, dilation, ceil)
            assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert tried > 40


def test_no_tap_inside_for_all_outputs() -> None:
    assert max_pool2d(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), 2, 2, 1) is None
    assert max_pool2d(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), 2, return_indices=True) is None
