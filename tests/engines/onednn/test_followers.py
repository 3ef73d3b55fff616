"""Ops between kernels, on integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.onednn.on_kernels import both
from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.support import supports
from fxquant.numerics.affine import sqnr_db

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


FUNCTIONS = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "exact": lambda x: F.interpolate(x, size=(9, 7), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad_value": lambda x: F.pad(x, (1, 1), value=0.3),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_resizing_and_padding_between_kernels(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 6) + 0.5
    reference, lowered = both(Between(FUNCTIONS[name]), x)
    assert sqnr_db(reference(x), lowered(x)) > (30 if name == "bilinear" else 45)  # means of two pixels are often ties
    if name in ("nearest", "exact", "pad"):
        assert not any(node.target is kernels.dequantize for node in lowered.graph.nodes), "it runs on integers"
