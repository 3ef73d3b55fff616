"""A grid in print: a few numbers, or how many."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq


def test_a_model_prints_without_its_numbers() -> None:
    quantized = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)], engine="reference")
    assert "uint8 0 to 255, scale=0." in repr(quantized) or "uint8 0 to 255, scale=[" in repr(quantized)
    assert "scale=<1 numbers on meta>" in repr(quantized.to("meta"))
