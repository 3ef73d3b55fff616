"""What export_onnx can be asked for: open sizes, opsets, names, metadata, models of several graphs, any stage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from export.onnx.exporting import Conv, quantize, run
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

onnx = pytest.importorskip("onnx")


pytest.importorskip("onnxruntime")


pytest.importorskip("onnxscript")


def test_image_size_and_batch_stay_open(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 16, 24)
    model = quantize(Conv(), x)
    open_sizes = {"image": {2: "height", 3: "width"}}
    path = fq.export_onnx(model, tmp_path / "m.onnx", x, dynamic_batch=True, dynamic_shapes=open_sizes)
    shape = [d.dim_param or d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 3, "height", "width"]
    other = torch.randn(2, 3, 9, 31)
    for actual, expected in zip(run(path, image=other), model(other).values(), strict=True):
        assert sqnr_db(expected, actual) > 45


class Strided(nn.Module):
    """Two levels by steps of 2, joined again: an image of one row has another graph."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = torch.relu(self.fine(image))
        return fine + nn.functional.interpolate(self.coarse(fine), size=fine.shape[2:])


@pytest.mark.parametrize("names", [("height", "width"), ("side", "side")])
def test_sizes_stay_open_behind_strides(names: tuple[str, str], tmp_path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = quantize(Strided(), x)
    open_sizes = {"image": dict(zip((2, 3), names, strict=True))}
    path = fq.export_onnx(model, tmp_path / "m.onnx", x, dynamic_shapes=open_sizes)
    shape = [d.dim_param or d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    assert shape == [2, 3, *names]
    for size in ((47, 47), (3, 3)):
        other = torch.randn(2, 3, *size)
        assert sqnr_db(model(other), run(path, image=other)[0]) > 45


def test_the_length_of_a_sequence_stays_open(tmp_path: Path) -> None:
    x = torch.randn(2, 8, 16)
    model = quantize(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), x)
    path = fq.export_onnx(model, tmp_path / "m.onnx", x, dynamic_shapes={"input": {1: "length"}})
    other = torch.randn(2, 5, 16)
    assert sqnr_db(model(other), run(path, input=other)[0]) > 45


def test_sizes_of_outputs_speak_of_the_names_that_were_given(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 32, 32)
    model = quantize(Strided(), x)
    path = fq.export_onnx(model, tmp_path / "m.onnx", x, dynamic_shapes={"image": {2: "height", 3: "width"}})
    made = onnx.load(path).graph
    found = {dim.dim_param for value in (*made.output, *made.value_info) for dim in value.type.tensor_type.shape.dim}
    assert any("height" in each and each != "height" for each in found)
    assert not [each for each in found if re.search(r"\bs\d", each)]


def test_what_is_given_wrongly_is_told(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 16, 16)
    model = quantize(Conv(), x)
    with pytest.raises(fq.ConfigError, match="give a dict of strings"):
        fq.export_onnx(model, tmp_path / "m.onnx", x, metadata=["a"])  # type: ignore[arg-type]
    with pytest.raises(fq.ConfigError, match=r"'image'. is a dict of 'img'.*arguments by their names \('image'\)"):
        fq.export_onnx(model, tmp_path / "m.onnx", {"img": x})


def test_sizes_that_cannot_be_open_are_said(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 16, 16)
    model = quantize(Conv(), x)
    for shapes, said in (
        ({"imag": {0: "n"}}, "'imag' is no tensor argument. Those are 'image'"),
        ({"image": {7: "n"}}, "no axis 7"),
        ({"image": {0: "n"}}, "Give an example where it is 2 or more"),
    ):
        with pytest.raises(fq.ConfigError, match=said):
            fq.export_onnx(model, tmp_path / "m.onnx", x, dynamic_shapes=shapes)
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.broad
@pytest.mark.parametrize("opset", [18, 19, 21, 23])
def test_opsets(opset: int, tmp_path: Path) -> None:
    x = ZOO["plain"].inputs()[0]
    model = quantize(ZOO["plain"].build(), x)
    path = fq.export_onnx(model, tmp_path / "m.onnx", x, opset=opset)
    assert {each.domain: each.version for each in onnx.load(path).opset_import}[""] == opset
    onnx.checker.check_model(str(path), full_check=True)
    assert sqnr_db(model(x), run(path, x=x)[0]) > 45


def test_an_opset_without_what_the_model_needs_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 64)
    four = fq.QConfigMapping().set_global(fq.int4_weight_only_qconfig)
    model = quantize(nn.Sequential(nn.Linear(64, 64)), x, qconfig_mapping=four)
    with pytest.raises(fq.ConfigError, match=r"written as 21 .* to 24"):
        fq.export_onnx(model, tmp_path / "m.onnx", x, opset=20)
    with pytest.raises(fq.ConfigError, match="written as 21"):
        fq.export_onnx(model, tmp_path / "m.onnx", x, opset=12)
