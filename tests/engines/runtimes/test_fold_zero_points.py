"""Zero points of inputs go into biases, but for what a convolution pads; the results stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.runtimes.onnxruntime import OnnxRuntime

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


class Products(nn.Module):
    """Inputs on both sides of zero for every kind of product, one of them moved and one read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.padded, self.plain = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 1, groups=2)
        self.no_bias = nn.Conv2d(6, 8, 1, bias=False)
        self.tokens, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.padded(x)
        y = self.plain(y) + self.no_bias(y)
        return self.head(self.tokens(y.flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.parametrize("gemm", [True, False])
def test_results_stay_and_zero_points_go(gemm: bool) -> None:
    from fxquant.engines.runtimes.fold_zero_points import fold_zero_points

    folded: list[int] = []

    class Folded(OnnxRuntime):
        def _adapt(self, graph: Any) -> None:
            super()._adapt(graph)
            before = _products_with_zero_points(graph)
            fold_zero_points(graph.graph)
            folded.extend((before, _products_with_zero_points(graph)))

    Folded.gemm = gemm
    x = torch.randn(2, 3, 6, 6)
    reference = fq.quantize(Products().eval(), [x], engine="reference")
    expected = reference(x)
    torch.testing.assert_close(Folded(reference, x)(x), expected, atol=float(expected.abs().max()) / 100, rtol=0)
    assert folded == [5, 2]  # what is padded, and what has no bias


def _products_with_zero_points(graph: Any) -> int:
    products = (node for node in graph.graph if node.op_type in ("Conv", "Gemm", "MatMul"))
    return sum(len(_dequantize(node.inputs[0]).inputs) == 3 for node in products)


def _dequantize(value: Any) -> Any:
    node = value.producer()
    return node if node.op_type == "DequantizeLinear" else _dequantize(node.inputs[0])
