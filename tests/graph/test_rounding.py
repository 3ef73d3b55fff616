"""Ties, and the largest number below a half, in every place that rounds."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.graph import torch_compat
from fxquant.graph.rounding import round_to

X = torch.tensor([-1.5, -0.5, 0.49999997, 0.5, 1.5, 2.5])
EXPECTED = {
    "half_even": [-2, 0, 0, 0, 2, 2],
    "half_up": [-1, 0, 0, 1, 2, 3],
    "floor": [-2, -1, 0, 0, 1, 2],
}


@pytest.mark.parametrize("rounding", EXPECTED)
def test_round_to(rounding: str) -> None:
    assert round_to(X, rounding).tolist() == EXPECTED[rounding]


@pytest.mark.parametrize("rounding", ["half_up", "floor"])
def test_the_op_of_a_converted_graph(rounding: str) -> None:
    q = torch_compat.QUANTIZE_ROUNDING(X, 1.0, 0, -128, 127, torch.int8, rounding)
    assert q.tolist() == EXPECTED[rounding]


def test_an_onnx_file(tmp_path: Path) -> None:
    spec = fq.Spec(observer="fixed", range=(-127.0, 127.0), rounding="half_up")
    qconfig = fq.QConfig(activation=spec, weight=fq.Spec(observer="minmax"))
    model = nn.Sequential(nn.Linear(6, 6, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6) * 127.0)
    x = X[None]
    quantized = fq.quantize(model, [x], qconfig_mapping=fq.QConfigMapping().set_global(qconfig), engine="reference")
    fq.export_onnx(quantized, tmp_path / "model.onnx", (x,))
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert (torch.from_numpy(y) / 127.0).round().tolist() == [EXPECTED["half_up"]]
    assert torch.equal(quantized(x), torch.from_numpy(y))
