"""Names of inputs and outputs come from the signature."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxquant as fq
from export.onnx.exporting import Conv, quantize

onnx = pytest.importorskip("onnx")


pytest.importorskip("onnxscript")


def test_names_come_from_the_signature_and_metadata_is_kept(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 16, 16)
    path = fq.export_onnx(quantize(Conv(), x), tmp_path / "m.onnx", x, metadata={"labels": "a,b"})
    model = onnx.load(path)
    assert [value.name for value in model.graph.input] == ["image"]
    assert [value.name for value in model.graph.output] == ["boxes", "hidden"]
    assert {each.key: each.value for each in model.metadata_props}["labels"] == "a,b"
    assert model.producer_name == "fxquant"
    with pytest.raises(fq.ConfigError, match="strings only"):
        fq.export_onnx(quantize(Conv(), x), tmp_path / "n.onnx", x, metadata={"classes": 3})  # type: ignore[dict-item]
