"""Files of torch.export: loaded, they are the reference bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_it_loads_bit_equal(mode: str, tmp_path: Path) -> None:
    x = ZOO["mobilenet"].inputs()[0]
    model = fq.quantize(ZOO["mobilenet"].build(), [x], engine="reference", mode=mode)
    path = fq.export_pt2(model, tmp_path / "m.pt2", x, dynamic_batch=True)
    loaded = torch.export.load(path).module()
    more = torch.cat([x, x, x])
    with torch.no_grad():
        assert torch.equal(loaded(more), model(more))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++")
def test_inductor_compiles_what_is_loaded(tmp_path: Path) -> None:
    """It asks for the zero points of weights: without them its lowering failed, on every file."""
    x = torch.randn(2, 3, 8, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    model = fq.quantize(net.eval(), [x], engine="reference", effort="fast")
    loaded = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", x)).module()
    with torch.no_grad():
        assert sqnr_db(model(x), torch.compile(loaded)(x)) > 60


def test_the_zero_points_of_weights_are_written_out(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    model = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [x], engine="reference", effort="fast")
    program = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", x))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = [node for node in calls if "dequantize_per_channel" in str(node.target)]
    assert found and all(node.args[2] is not None for node in found)


def test_keyword_arguments_and_bad_paths(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return self.linear(x) * scale

    x = torch.randn(2, 4)
    model = fq.quantize(Net().eval(), [x], engine="reference")
    loaded = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", {"x": x})).module()
    with torch.no_grad():
        assert torch.equal(loaded(x=x), model(x))
    again = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", x, example_kwargs={"scale": 1.0})).module()
    with torch.no_grad():
        assert torch.equal(again(x, scale=1.0), model(x))
    open_batch = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", {"x": x}, dynamic_batch=True)).module()
    with torch.no_grad():
        assert torch.equal(open_batch(x=torch.cat([x, x])), model(torch.cat([x, x])))
    with pytest.raises(fq.ConfigError, match=r"fails on the example inputs: .* Pass others\.$"):
        fq.export_pt2(model, tmp_path / "m.pt2", x[:, :2])
    with pytest.raises(fq.ConfigError, match="no directory"):
        fq.export_pt2(model, tmp_path / "none" / "m.pt2", x)
    with pytest.raises(fq.StageError, match="needs a converted model"):
        fq.export_pt2(nn.Linear(2, 2), tmp_path / "n.pt2", torch.randn(1, 2))
    assert not (tmp_path / "n.pt2").exists()


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(x) + y


def test_a_tensor_that_stands_twice_in_the_example_is_two_inputs(tmp_path: Path) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    quantized = fq.quantize(Sum(), [(x, y)], engine="reference", effort="fast")
    exported = torch.export.load(fq.export_pt2(quantized, tmp_path / "model.pt2", (x, x))).module()
    assert torch.equal(exported(x, y), quantized(x, y))


class Branch(nn.Module):
    """Its encoder gets a mask where one is needed, and where the code is exported, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and bool(mask.all()):
            return self.encoder(x, None)
        return self.encoder(x, mask)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = torch.relu(self.fc(x))
        return self.last(y if mask is None else y * mask)


def test_parts_that_torch_exports_otherwise_than_calls_run_them_are_not_float_in_silence(tmp_path: Path) -> None:
    """The graph of `encoder` holds for no mask, and the file had it in float, where the model has int8."""
    torch.manual_seed(0)
    x, mask = torch.randn(8, 4), torch.ones(8, 8)
    symbolic = fq.quantize(Branch().eval(), [(x, mask)], engine="reference", effort="fast")
    for call, end in ((fq.export_pt2, "pt2"), (fq.export_onnx, "onnx")):
        with pytest.raises(fq.ConfigError, match=r"'encoder' would be in float.*it is a tensor\. .*method='export'"):
            call(symbolic, tmp_path / f"m.{end}", (x, mask))
    assert not [*tmp_path.iterdir()]
    exported = fq.quantize(Branch().eval(), [(x, mask)], engine="reference", effort="fast", method="export")
    loaded = torch.export.load(fq.export_pt2(exported, tmp_path / "m.pt2", (x, mask))).module()
    with torch.no_grad():
        assert torch.equal(loaded(x, mask), exported(x, mask))


def test_parts_that_are_float_in_a_call_are_so_in_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(8, 4), torch.ones(8, 8)
    model = fq.quantize(Branch().eval(), [(x, mask)], engine="reference", effort="fast")
    mask[0, 0] = 0
    loaded = torch.export.load(fq.export_pt2(model, tmp_path / "m.pt2", (x, mask))).module()
    with torch.no_grad():
        assert torch.equal(loaded(x, mask), model(x, mask))
