"""Recurrent layers in ONNX: one loop, whatever the length of the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from exact_session import exact_session
from fxquant.graph.region import lowering_of
from fxquant.numerics.affine import sqnr_db

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


class Tagger(nn.Module):
    def __init__(self, cls: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = cls(12, 16, batch_first=True, **options)
        self.tags = nn.Linear((options.get("proj_size") or 16) * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.rnn(x)[0])


def quantized(mode: Any, cls: type[nn.RNNBase], target: str | None = None, **options: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(3, 9, 12)
    data = [x] if mode == "static" else None
    model = Tagger(cls, **options).eval()
    return fq.quantize(model, data, mode=mode, example_inputs=(x,), engine="reference", target=target), x


def run(path: Path, x: Tensor) -> Tensor:
    session = exact_session(path)
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.broad
@pytest.mark.parametrize(
    ("mode", "cls", "options"),
    [
        ("static", nn.LSTM, {"bidirectional": True}),
        ("dynamic", nn.LSTM, {"num_layers": 2}),
        ("static", nn.GRU, {}),
        ("weight_only", nn.LSTM, {"proj_size": 8}),
    ],
    ids=["bidirectional", "dynamic", "gru", "projected"],
)
def test_a_layer_is_one_scan(mode: str, cls: type[nn.RNNBase], options: dict[str, Any], tmp_path: Path) -> None:
    model, x = quantized(mode, cls, **options)
    file = fq.export_onnx(model, tmp_path / "m.onnx", (x,), dynamic_batch=True)
    graph = onnx.load(file).graph
    scans = [node for node in graph.node if node.op_type == "Scan"]
    assert len(scans) == options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    for inputs in (x, torch.cat([x, -x])):
        assert sqnr_db(model(inputs), run(file, inputs)) > 35


def test_ranges_found_at_run_time_go_through_integer_kernels(tmp_path: Path) -> None:
    model, x = quantized("dynamic", nn.LSTM)
    file = fq.export_onnx(model, tmp_path / "m.onnx", (x,))
    graph = onnx.load(file).graph
    body = next(a.g for node in graph.node if node.op_type == "Scan" for a in node.attribute if a.name == "body")
    assert [node.op_type for node in graph.node].count("MatMulInteger") == 2  # the input's, and the tags
    assert [node.op_type for node in body.node].count("MatMulInteger") == 1


@pytest.mark.broad
@pytest.mark.parametrize(
    ("mode", "engine"), [("static", "onnxruntime"), ("static", "openvino"), ("weight_only", "onnxruntime")]
)
def test_runtimes_run_recurrent_layers(mode: Any, engine: Any) -> None:
    pytest.importorskip(engine)
    model, x = quantized(mode, nn.LSTM, target=engine)
    data = [x] if mode == "static" else None
    running = fq.quantize(Tagger(nn.LSTM).eval(), data, mode=mode, example_inputs=(x,), engine=engine, target=engine)
    running.load_state_dict(model.state_dict())
    assert lowering_of(running).runner.engine == engine
    assert sqnr_db(model(x), running(x)) > 30
