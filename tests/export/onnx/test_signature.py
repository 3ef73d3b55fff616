"""Names of inputs and outputs come from the signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq

onnx = pytest.importorskip("onnx")


pytest.importorskip("onnxscript")


def quantize(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    return fq.quantize(model.eval(), [args], example_inputs=args, engine="reference", **kwargs)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.conv(image))
        return {"boxes": self.head(hidden), "hidden": hidden.mean((2, 3))}


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
