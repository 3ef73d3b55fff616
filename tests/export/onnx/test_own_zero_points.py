"""Files of weights with one scale run in ONNX Runtime's exact mode, which gives each weight a new zero point."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_exact_sums_can_be_asked_for(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    made = fq.quantize(model, [x], target="xint8", engine="reference", algorithms=())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(fq.export_onnx(made, tmp_path / "m.onnx", x)), options)
    (found,) = session.run(None, {"input": x.numpy()})
    with torch.no_grad():
        assert (found == made(x).numpy()).all()
