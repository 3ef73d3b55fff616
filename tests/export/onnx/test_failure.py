"""Exports that fail say in one paragraph what, where and what instead; what torch prints about it is not shown."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import FxQuantError
from fxquant.export.onnx.failure import failure

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))


class Eigenvalues(Detector):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvals(self.backbone(x).mean(1)).real


class Singular(Detector):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svd(self.backbone(x).mean(1))[1]


class Bessel(Detector):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.backbone(x))


class Branch(Detector):
    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(x)
        if x.sum() > 0:
            return x
        return -x


class PlainOutputs(Detector):
    def forward(self, x: Tensor) -> Any:
        return self.backbone(x), None, 3, {"name": "a", "flag": True}, [4.5, None]


X = torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Eigenvalues(), r"aten\.linalg_eig.*quantize\(float_model\.backbone"),
        (Singular(), r"aten\._linalg_svd"),
        (Bessel(), r"prims\.bessel_j0"),
        (Branch(), "model.backbone"),
    ],
)
def test_one_paragraph_and_a_hint_that_works(
    model: Detector, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    quantized = fq.quantize(model, [X])
    capfd.readouterr()
    caplog.set_level(logging.DEBUG, "fxquant")
    with pytest.raises(FxQuantError, match=what) as caught:
        fq.export_onnx(quantized, tmp_path / "model.onnx", (X,))
    assert capfd.readouterr() == ("", "")
    assert f"{Path(__file__).name}:" in str(caught.value)
    assert len(str(caught.value)) < 800
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert any(record.exc_info for record in caplog.records)
    part = quantized.backbone if isinstance(model, Branch) else fq.quantize(model.backbone, [X])
    fq.export_onnx(part, tmp_path / "part.onnx", (X,))


def test_outputs_that_are_no_tensors_stay_with_the_caller(tmp_path: Path) -> None:
    model = PlainOutputs()
    theirs = fq.quantize(model, [X])(X)
    assert theirs[1:] == (None, 3, {"name": "a", "flag": True}, [4.5, None])
    fq.export_onnx(fq.quantize(model, [X]), tmp_path / "model.onnx", (X,))
    for engine in ("onnxruntime", "openvino"):
        pytest.importorskip(engine)
        found = fq.quantize(model, [X], engine=engine)(X)  # type: ignore[arg-type]
        assert found[1:] == theirs[1:]
        assert torch.allclose(found[0], theirs[0], atol=0.05)


@dataclass
class Pair:
    first: Tensor
    second: Tensor


class GivesPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Pair:
        y = self.fc(x)
        return Pair(y, second=2 * y)


class TakesPair(GivesPair):
    def forward(self, pair: Pair) -> Tensor:  # type: ignore[override]
        return self.fc(pair.first)


@pytest.mark.parametrize(("kind", "does"), [(GivesPair, "returns"), (TakesPair, "takes")])
def test_classes_that_torch_does_not_look_into(kind: type[nn.Module], does: str, tmp_path: Path) -> None:
    x = torch.randn(2, 8)
    call = x if kind is GivesPair else Pair(x, x)
    quantized = fq.quantize(kind().eval(), [(call,)], engine="reference")
    wanted = rf"The model {does} an object of class Pair.*torch\.export\.register_dataclass\(Pair\)"
    with pytest.raises(fq.FxQuantError, match=wanted):
        fq.export_onnx(quantized, tmp_path / "m.onnx", (call,))


def test_a_model_of_transformers_that_returns_its_cache_is_told_how_not_to() -> None:
    cache = "Found <class 'transformers.cache_utils.DynamicCache'> in output, which is not a known type."
    told = str(failure("export_onnx", RuntimeError(cache), nn.Linear(2, 2)))
    assert "The model returns its cache" in told and "config.use_cache = False" in told and "pytree" not in told
