"""Transposed convolutions on the convolution kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from engines.onednn.on_kernels import both
from fxquant.engines.onednn.support import supports
from fxquant.engines.onednn.transposed import TransposedKernel

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


@pytest.mark.broad
@pytest.mark.parametrize("groups", [1, 2], ids="groups{}".format)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "extra"),
    [(1, 1, 0, 0), (3, 1, 1, 0), (2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (2, 3, 0, 0), (5, 3, 2, 1)],
)
@pytest.mark.parametrize("dims", [1, 2, 3], ids="{}d".format)
def test_transposed_convolutions(dims: int, kernel: int, stride: int, padding: int, extra: int, groups: int) -> None:
    conv = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    model = nn.Sequential(conv(8, 12, kernel, stride, padding, extra, groups=groups), nn.ReLU(), nn.Flatten())
    x = torch.randn(2, 8, *(6, 5, 4)[:dims]) + 0.7
    reference, lowered = both(model, x)
    assert any(isinstance(module, TransposedKernel) for module in lowered.modules())
    torch.testing.assert_close(lowered(x), reference(x), rtol=1e-4, atol=1e-4)
    more = torch.cat([x, x + 1])
    torch.testing.assert_close(lowered(more), reference(more), rtol=1e-4, atol=1e-4)


def test_a_dilated_transposed_convolution_says_why_it_runs_in_float() -> None:
    x = torch.randn(2, 8, 6, 6)
    reference, lowered = both(nn.Sequential(nn.ConvTranspose2d(8, 8, 3, dilation=2)), x)
    assert any("dilation" in row.reason for row in fq.explain(lowered))
    torch.testing.assert_close(lowered(x), reference(x))
