"""Zeros around the input of a convolution become its own; all other padding stays an op."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from export.onnx.exporting import quantize, run
from fxquant.numerics.affine import sqnr_db

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SEVEN_BITS = fq.QConfig(activation=fq.Spec(bits=7, signed=False, symmetric=False), weight=fq.default_qconfig.weight)


class Padded(nn.Module):
    """Convolutions of the padded input, of a padded tensor that two of them read, and of one that is cut."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.first, self.depthwise = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.beside, self.cut, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(F.pad(x, (0, 1, 2, 1), **self.how)))
        wide = F.pad(y, (0, 1, 2, 1), **self.how)
        both = F.relu(self.depthwise(wide)) + F.relu(self.beside(wide))
        return self.last(both[..., 1:-2, :-1] + self.cut(F.pad(y, (0, 0, -1, 1))[..., 1:, :]).mean())


@pytest.mark.broad
@pytest.mark.parametrize(
    ("how", "left"), [({}, 1), ({"value": 0.5}, 3), ({"mode": "reflect"}, 3)], ids=["zeros", "others", "mirror"]
)
@pytest.mark.parametrize("qconfig", [fq.default_qconfig, SEVEN_BITS], ids=["8 bits", "7 bits"])
def test_zeros_go_into_convolutions(how: dict[str, Any], left: int, qconfig: fq.QConfig, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 12, 12)
    mapping = fq.QConfigMapping().set_global(qconfig)
    reference = quantize(Padded(**how), x, qconfig_mapping=mapping, precision="int8")
    path = fq.export_onnx(reference, tmp_path / "net.onnx", (x,))
    assert ops(path)["Pad"] == left
    (found,) = run(path, x=x)
    assert sqnr_db(reference(x), found) > 40  # single values may be rounded to the next step


def test_zeros_around_channels_stay(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 12, 12)
    model = nn.Sequential(nn.ZeroPad3d((0, 0, 0, 0, 1, 1)), nn.Conv2d(5, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    path = fq.export_onnx(quantize(model, x), tmp_path / "net.onnx", (x,))
    assert ops(path)["Pad"] == 1


def test_onnx_runtime_pads_in_its_int8_kernels(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 12, 12)
    model = nn.Sequential(
        *(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 8, 3, stride=2), nn.ReLU6()),
        *(nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Conv2d(8, 4, 1),
    )
    path = fq.export_onnx(quantize(model, x, target="onnxruntime"), tmp_path / "net.onnx", (x,))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kernels = ops(tmp_path / "optimized.onnx")
    assert kernels["QLinearConv"] == 3
    assert not kernels["Pad"]
    assert kernels["QuantizeLinear"] == 1


def ops(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)
