"""Activations with a scale for each channel, from a user's qconfig to the graph of quantize_per_channel on axis 1."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from exact_session import exact_session
from fxquant.errors import ConfigError, StageError
from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams
from fxquant.numerics.affine import sqnr_db

SPEC = fq.Spec(signed=False, symmetric=False, granularity="per_channel", axis=1, observer="minmax")
WEIGHT = fq.default_qconfig.weight


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    ).eval()


def data(seed: int = 0) -> Tensor:
    scales = torch.tensor([0.01, 1.0, 100.0]).reshape(1, 3, 1, 1)
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * scales


def prepare(spec: fq.Spec = SPEC) -> nn.Module:
    return fq.prepare_fx(net(), fq.QConfigMapping().set_global(fq.QConfig(spec, WEIGHT)), (data(),))


def convert(spec: fq.Spec = SPEC) -> nn.Module:
    prepared = prepare(spec)
    fq.calibrate(prepared, [data(), data(1)])
    return fq.convert_fx(prepared, engine="reference")


@pytest.mark.parametrize("observer", ["minmax", "moving_average", "histogram", "percentile"])
@pytest.mark.parametrize("rounding", ["half_even", "half_up"])
def test_the_graph_quantizes_per_channel_on_axis_1(observer: str, rounding: str) -> None:
    quantized = convert(SPEC.with_(observer=observer, rounding=rounding))
    grids = [grid for node in quantized.graph.nodes if (grid := QParams.of(node)) is not None and grid.axis == 1]
    assert grids and all(grid.scale.op == "get_attr" for grid in grids)
    scales = [value for name, value in quantized.state_dict().items() if name.endswith(".scale")]
    assert [tuple(scale.shape) for scale in scales] == [(3,), (8,), (8,)]
    assert scales[0][2] > 1000 * scales[0][0], "each channel has its own range"
    assert sqnr_db(net()(data()), quantized(data())) > 25


def test_a_scale_is_that_of_the_channel() -> None:
    quantized, x = convert(), torch.cat([data(), data(1)])
    low, high = x.amin((0, 2, 3)), x.amax((0, 2, 3))
    scale = next(value for name, value in quantized.state_dict().items() if name.endswith(".scale"))
    torch.testing.assert_close(scale, (high - low) / 255)


def test_what_is_frozen_computes_what_is_converted() -> None:
    prepared = prepare()
    fq.calibrate(prepared, [data()])
    converted = fq.convert_fx(prepared, engine="reference")
    torch.testing.assert_close(fq.freeze(prepared)(data()), converted(data()))


def test_the_state_goes_into_a_model_that_waits_for_it(tmp_path: Path) -> None:
    quantized, waiting = convert(), fq.convert_fx(prepare(), engine="reference")
    with pytest.raises(StageError, match="waits"):
        waiting(data())
    waiting.load_state_dict(quantized.state_dict())
    assert torch.equal(waiting(data()), quantized(data()))
    fq.save(quantized, tmp_path / "model.fq")
    assert torch.equal(fq.load(tmp_path / "model.fq", engine="reference")(data()), quantized(data()))


def test_a_scale_that_is_written_to_is_the_one_that_runs() -> None:
    quantized = convert()
    before = quantized(data())
    name = next(name for name, _ in quantized.named_buffers() if name.endswith(".scale"))
    quantized.get_buffer(name).mul_(4.0)
    assert not torch.equal(quantized(data()), before)


def test_training_straight_through() -> None:
    spec = SPEC.with_(learn="ste", observer="moving_average")
    qconfig = fq.QConfig(spec, WEIGHT.with_(learn="ste"))
    model = fq.prepare_qat_fx(net().train(), fq.QConfigMapping().set_global(qconfig), (data(),))
    model(data()).square().sum().backward()
    quantized = fq.convert_fx(model.eval(), engine="reference")
    assert any(node.target is torch_compat.QUANTIZE_CHANNEL for node in quantized.graph.nodes)
    torch.testing.assert_close(quantized(data()), model(data()), rtol=1e-3, atol=1e-3)


def test_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    quantized = convert()
    fq.export_onnx(quantized, tmp_path / "model.onnx", (data(),))
    session = exact_session(tmp_path / "model.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: data().numpy()})
    assert sqnr_db(quantized(data()), torch.from_numpy(y)) > 30


def test_the_default_engine_agrees() -> None:
    prepared = prepare()
    fq.calibrate(prepared, [data()])
    torch.testing.assert_close(fq.convert_fx(prepared)(data()), fq.convert_fx(prepared, engine="reference")(data()))


@pytest.mark.parametrize("changes", [{"dynamic": True}, {"learn": "lsq"}], ids=["dynamic", "learned"])
def test_what_is_not_observed_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="are observed"):
        fq.QConfig(SPEC.with_(**changes), WEIGHT)
