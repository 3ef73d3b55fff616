"""Watched tensors of every layout: sparse ones have no memory of their own to point to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


class Neighbours(nn.Module):
    """A layer of a graph network: sums over neighbours by a sparse matrix."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        edges = (torch.rand(4, 4) > 0.5).float().to_sparse()
        if buffer:
            self.register_buffer("edges", edges)
        else:
            self.edges = edges

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sparse.mm(self.edges, torch.relu(self.first(x))))


@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("engine", ["onednn", "native"])
def test_sparse_tensors(engine: str, buffer: bool) -> None:
    if engine == "native":
        pytest.importorskip("llvmlite")
    model, x = Neighbours(buffer=buffer).eval(), torch.randn(4, 8)
    reference, quantized = (fq.quantize(model, [x], engine=each, precision="int8") for each in ("reference", engine))
    for _ in range(3):
        torch.testing.assert_close(quantized(x), reference(x), atol=0.05, rtol=0.0)
    for each in (reference, quantized):
        each.edges.mul_(2.0)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(quantized(x), reference(x), atol=0.1, rtol=0.0)
