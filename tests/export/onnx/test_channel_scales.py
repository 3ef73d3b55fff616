"""A depthwise convolution's input with a scale for each channel: the same integers, in kernels that runtimes have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from export.onnx.exporting import run
from fxquant.numerics.affine import sqnr_db

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Uneven(nn.Module):
    """The channels of the first convolution differ by a factor of 1000."""

    def __init__(self, act: nn.Module, *, bias: bool = True, twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.twice = nn.Conv2d(3, 16, 3, bias=bias), act, twice
        self.depthwise, self.last = nn.Conv2d(16, 32, 3, padding=1, groups=16), nn.Conv2d(32, 4, 1)
        with torch.no_grad():
            for tensor in self.first.parameters():
                tensor.mul_(torch.logspace(-2, 1, 16).view(-1, *(1,) * (tensor.dim() - 1)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(x))
        z = self.last(torch.relu(self.depthwise(y)))
        return z + y.mean() if self.twice else z


ACTS = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), "none": nn.Identity(), "silu": nn.SiLU(), "clip": nn.Hardtanh(-1, 0.5)}


@pytest.mark.broad
@pytest.mark.parametrize("weight", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("target", ["x86-vnni", "onnxruntime"])  # with biases in float, and in int32
@pytest.mark.parametrize("name", ACTS)
def test_the_values_stay(name: str, target: str, weight: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    mapping = fq.get_default_qconfig_mapping(target)
    if weight == "per_tensor":
        qconfig = fq.QConfig(activation=fq.default_qconfig.activation, weight=fq.Spec(observer="minmax"))
        mapping = mapping.set_module_name("first", qconfig)
    for bias in (True, False):
        reference = converted(Uneven(ACTS[name], bias=bias), x, target, mapping)
        path = fq.export_onnx(reference, tmp_path / "net.onnx", (x,))
        assert sqnr_db(reference(x), run(path, x=x)[0]) > 45


@pytest.mark.parametrize("name", ["relu", "relu6", "none"])
def test_the_convolution_before_writes_integers(name: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    found = kernels(fq.export_onnx(converted(Uneven(ACTS[name]), x), tmp_path / "net.onnx", (x,)))
    assert found["QLinearConv"] == 2
    assert found["Mul"] == found["Round"]  # those of the input, none for channels
    assert found["Conv"] == 1  # the last, whose output is float


def test_what_others_read_is_not_divided(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    reference = converted(Uneven(nn.ReLU(), twice=True), x)
    path = fq.export_onnx(reference, tmp_path / "net.onnx", (x,))
    assert sqnr_db(reference(x), run(path, x=x)[0]) > 45


def converted(model: nn.Module, x: Tensor, target: str = "onnxruntime", mapping: object = None) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), mapping or fq.get_default_qconfig_mapping(target), (x,), target=target)
    prepared(x)
    return fq.convert_fx(prepared, engine="reference")


def kernels(path: Path) -> Counter[str]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(path.with_suffix(".optimized")).graph.node)
