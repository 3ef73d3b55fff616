"""Ops that move elements in ways that no view does, in machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from one_segment import Between, BetweenPixels, check_one_segment

pytest.importorskip("llvmlite")

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda y: y.roll(2, -1) + y.roll((1, 3), (1, 2)),
    "flip": lambda y: y.flip(-1) + y.flip(1),
    "repeat": lambda y: y.repeat(1, 1, 2)[..., 3:23] + y.tile(1, 2, 1)[:, 3:8],
    "interleave": lambda y: y.repeat_interleave(2, -1)[..., :20] + y.repeat_interleave(2, dim=1)[:, :5],
    "index": lambda y: y[:, [0, 2, 1, 3, 4]] + y[:, torch.tensor([1, 0, 2, 2, 4])],
    "index_select": lambda y: y.index_select(2, torch.arange(19, -1, -1)),
    "rectified": lambda y: y.relu().roll(1, 1),
}
PIXELS: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda y: y.roll((1, -2), (2, 3)) + y.flip(2, 3),
    "reflect": lambda y: F.pad(y, (1, 2, 1, 0), mode="reflect"),
    "replicate": lambda y: F.pad(y.relu(), (1, 2, 1, 0), mode="replicate"),
    "circular": lambda y: F.pad(y, (1, 2, 1, 0), mode="circular"),
    "channels": lambda y: y[:, [3, 1, 2] * 6 + [0, 1]] + F.channel_shuffle(y, 4),
    "unshuffle": lambda y: F.pixel_unshuffle(F.pad(y, (0, 1, 0, 1))[:, :5], 2),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    check_one_segment(Between(ROWS[name]), torch.randn(2, 5, 8))


@pytest.mark.broad
@pytest.mark.parametrize("name", PIXELS)
def test_pixels(name: str) -> None:
    check_one_segment(BetweenPixels(PIXELS[name]), torch.randn(2, 3, 9, 11))


@pytest.mark.parametrize(
    "module", [nn.ReflectionPad2d(2), nn.ChannelShuffle(5)], ids=lambda module: type(module).__name__
)
def test_modules(module: nn.Module) -> None:
    check_one_segment(BetweenPixels(module), torch.randn(2, 3, 9, 11))
