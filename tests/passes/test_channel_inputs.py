"""Inputs of depthwise convolutions have a scale for each channel where their ranges differ; everything follows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from exact_session import exact_session
from fxquant.engines.native.apply import has_native
from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams
from fxquant.numerics.affine import sqnr_db
from fxquant.targets.x86 import x86

ENGINES = ["onednn", *(["native"] if has_native() else [])]
ENGINES += [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]


class Net(nn.Module):
    """A depthwise convolution after channels from 0.01 to 100, which its filters bring back to one size."""

    def __init__(self, spread: float = 2.0, *, act: type[nn.Module] = nn.SiLU, branch: bool = False) -> None:
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, 8, 3, padding=1), act()
        self.depth = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.point, self.other = nn.Conv2d(16, 4, 1), nn.Conv2d(8, 4, 1) if branch else None
        with torch.no_grad():
            sizes = torch.logspace(-spread, spread, 8)
            self.stem.weight.mul_(sizes[:, None, None, None])
            self.stem.bias.mul_(sizes)
            self.depth.weight.div_(sizes.repeat_interleave(2)[:, None, None, None])

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        y: Tensor = self.point(self.depth(x).relu())
        return y if self.other is None else y + 0.01 * self.other(x)


def data() -> Tensor:
    return torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def net(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    return Net(**settings).eval()  # type: ignore[arg-type]


def prepare(model: nn.Module, mapping: object = None, calibrated: bool = True) -> nn.Module:
    prepared = fq.prepare_fx(model, mapping or fq.get_default_qconfig_mapping("x86"), (data(),))
    return fq.calibrate(prepared, [data()]) if calibrated else prepared


def channel_grids(model: nn.Module) -> list[QParams]:
    grids = [QParams.of(node) for node in model.graph.nodes if node.target is torch_compat.QUANTIZE_CHANNEL]
    return [grid for grid in grids if grid is not None]


@pytest.mark.parametrize("settings", [{}, {"act": nn.ReLU}, {"branch": True}], ids=["silu", "relu", "branch"])
def test_small_channels_keep_their_signal(settings: dict[str, object]) -> None:
    model = net(**settings)
    one = fq.QConfigMapping().set_global(fq.QConfig(x86().activation.with_(observer="minmax"), x86().weight))
    with torch.no_grad():
        flat = sqnr_db(model(data()), fq.convert_fx(prepare(model, one), engine="reference")(data()))
        quantized = fq.convert_fx(prepare(model), engine="reference")
        assert sqnr_db(model(data()), quantized(data())) > max(flat + 15, 32)
    (grid,) = channel_grids(quantized)
    assert grid.axis == 1
    row = next(row for row in fq.explain(quantized) if row.path == "depth")
    assert row.status == "int8" and "a scale for each channel" in row.reason


@pytest.mark.broad
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("branch", [False, True], ids=["alone", "branch"])
def test_engines_agree(engine: str, branch: bool) -> None:
    prepared = fq.calibrate(
        fq.prepare_fx(net(branch=branch), fq.get_default_qconfig_mapping("x86"), (data(),), target="x86"), [data()]
    )
    expected = fq.convert_fx(prepared, engine="reference")(data())
    quantized = fq.convert_fx(prepared, engine=engine)
    assert sqnr_db(expected, quantized(data())) > 45
    if engine == "onednn":
        assert all(row.status != "float" for row in fq.explain(quantized) if row.kind == "conv2d")


def test_channels_of_one_size_are_on_one_grid() -> None:
    quantized = fq.convert_fx(prepare(net(spread=0.0)), engine="reference")
    assert not channel_grids(quantized)
    assert quantized.state_dict()["quantizers.act.scale"].shape == (8,), "names and shapes do not depend on the data"


def test_the_state_goes_into_a_model_that_waits_for_it(tmp_path: Path) -> None:
    quantized = fq.convert_fx(prepare(net(branch=True)))
    waiting = fq.convert_fx(prepare(net(spread=0.0, branch=True), calibrated=False))
    waiting.load_state_dict(quantized.state_dict())
    assert torch.equal(waiting(data()), quantized(data()))
    flat = fq.convert_fx(prepare(net(spread=0.0, branch=True)))
    flat.load_state_dict(quantized.state_dict())
    assert torch.equal(flat(data()), quantized(data()))
    fq.save(quantized, tmp_path / "model.fq")
    assert torch.equal(fq.load(tmp_path / "model.fq")(data()), quantized(data()))


def test_what_is_frozen_computes_what_is_converted() -> None:
    prepared = prepare(net(branch=True))
    torch.testing.assert_close(fq.freeze(prepared)(data()), fq.convert_fx(prepared, engine="reference")(data()))


def test_ranges_that_a_rule_gives_stay_as_they_are() -> None:
    spec = x86().activation
    mapping = fq.QConfigMapping().set_global(fq.QConfig(spec, x86().weight, input=spec))
    assert not channel_grids(fq.convert_fx(prepare(net(act=nn.ReLU), mapping), engine="reference"))


def test_calibration_is_where_training_starts_from() -> None:
    state = prepare(net()).state_dict()
    qat = fq.prepare_qat_fx(net().train(), fq.get_default_qat_qconfig_mapping("x86"), (data(),))
    qat.load_state_dict(state, strict=False)
    quantizer = qat.get_submodule("quantizers.act")
    assert quantizer.observer.seen and quantizer.observer.low.shape == ()


def test_an_exported_file_has_one_scale_for_the_tensor(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    quantized = fq.convert_fx(prepare(net()), engine="reference")
    fq.export_onnx(quantized, tmp_path / "model.onnx", (data(),))
    session = exact_session(tmp_path / "model.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: data().numpy()})
    assert sqnr_db(quantized(data()), torch.from_numpy(y)) > 45
