"""Heads that keep what they computed for one size of pictures: graphs of them hold only while it is there."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

import fxquant as fq


class Head(nn.Module):
    """Adds the places of the cells of a picture, which are made anew for other sizes, as detectors do."""

    shape: ClassVar[torch.Size | None] = None
    places: Tensor = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.shape != x.shape[2:]:
            ys, xs = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
            self.shape, self.places = x.shape[2:], torch.stack((xs, ys)).flatten(1).float()
        return self.conv(x).flatten(2) + self.places


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), Head()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x if float(x.sum()) < 1e9 else x.relu())


def quantized_after_a_call() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = Detector().eval()
    with torch.no_grad():
        model(torch.randn(2, 3, 4, 6))  # the head knows this size when it is captured
        return model, fq.quantize(model, [torch.randn(2, 3, 4, 6) for _ in range(3)], precision="int8")


def test_what_a_head_keeps_for_another_size_is_not_used_for_the_first() -> None:
    model, quantized = quantized_after_a_call()
    with torch.no_grad():
        for made in (quantized, copy.deepcopy(quantized)):
            for size in ((4, 6), (6, 4), (4, 6), (5, 5), (6, 4), (4, 6)):
                x = torch.randn(2, 3, *size)
                assert torch.allclose(made(x), model(x), atol=0.1), size


def test_int8_comes_back_with_the_size() -> None:
    _, quantized = quantized_after_a_call()
    x = torch.randn(2, 3, 4, 6)
    with torch.no_grad():
        before = quantized(x)
        quantized(x.transpose(2, 3))
        assert not torch.equal(quantized(x), before)  # in float, which makes the places again
        assert torch.equal(quantized(x), before)


def test_load_finds_what_a_head_keeps(tmp_path: Path) -> None:
    model, quantized = quantized_after_a_call()
    path, x = fq.save(quantized, tmp_path / "m.fq"), torch.randn(2, 3, 4, 6)
    with torch.no_grad():
        for known in (model, Detector().eval()):
            loaded = fq.load(path, known)
            assert torch.equal(loaded(x), quantized(x))
            assert torch.allclose(loaded(x.transpose(2, 3)), model(x.transpose(2, 3)), atol=0.1)
            assert torch.allclose(loaded(x), model(x), atol=0.1)
