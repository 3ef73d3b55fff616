"""From a float model to a prepared one."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

import fxquant as fq


class Halves(nn.Module):
    """Traces with the example's sizes only, at the second try."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        left, right = y.relu().chunk(2, 1) if y.shape[1] > 4 else (y, y)
        height, width = y.shape[2:]
        return self.last(torch.cat((left, right), 1)).reshape(-1, 4, height * width)


def alive() -> int:
    return sum(type(each) is nn.Conv2d for each in gc.get_objects())


def test_copies_of_the_model_are_free_without_the_garbage_collector() -> None:
    """A full collection takes longer than preparing a small model, in a process that holds much."""
    model, x, mapping = Halves().eval(), torch.randn(2, 3, 8, 8), fq.get_default_qconfig_mapping("x86")
    gc.collect()
    gc.disable()
    try:
        before = alive()
        prepared = fq.prepare_fx(model, mapping, (x,))
        assert alive() - before == sum(type(each) is nn.Conv2d for each in prepared.modules()) == 2
    finally:
        gc.enable()
