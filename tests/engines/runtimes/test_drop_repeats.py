"""Pairs around ops that only move a tensor are read past, and the others are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.runtimes.onnxruntime import OnnxRuntime
from fxquant.export.onnx.export import to_onnx
from fxquant.numerics.affine import sqnr_db

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


class Moves(nn.Module):
    """Four tensors on grids of their own; one is joined from two parts and moved twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(6 * 8, 5)
        self.out = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = self.fc(torch.cat((y, y), 1).permute(0, 2, 3, 1).flatten(2))
        return self.out(y.relu())


def test_values_stay_and_pairs_go() -> None:
    from onnx_ir.passes import common

    from fxquant.engines.runtimes.drop_repeats import drop_repeats

    x = torch.randn(2, 3, 8, 8)
    reference = fq.quantize(Moves().eval(), [x], engine="reference", target="x86-vnni")
    graph, _ = to_onnx(reference, x, dynamic_batch=False, caller="test", gemm=False)
    assert _pairs(graph) == 6
    drop_repeats(graph.graph)
    common.RemoveUnusedNodesPass()(graph)
    assert _pairs(graph) == 3

    class Without(OnnxRuntime):
        gemm = False

        def _adapt(self, graph: object) -> None:
            super()._adapt(graph)
            drop_repeats(graph.graph)  # type: ignore[attr-defined]

    # what is not quantized again is multiplied in float, so single values may be rounded to the next step
    assert sqnr_db(OnnxRuntime(reference, x)(x), Without(reference, x)(x)) > 40


def _pairs(graph: object) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in graph.graph)  # type: ignore[attr-defined]
