"""Observers and fake-quantize modules of torch.ao as specs: each setting is honoured or refused, never ignored."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.config.qconfig import as_qconfig
from fxquant.numerics.affine import sqnr_db

ao = pytest.importorskip("torch.ao.quantization")

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Fixed(ao.MinMaxObserver):
    """A subclass with an answer of its own."""

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([0.5]), torch.tensor([3])


class Plain(nn.Module):
    """No class of torch.ao at all."""

    dtype, qscheme = torch.qint8, torch.per_tensor_symmetric

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, x.abs().max())
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return self.largest / 64, torch.tensor(0)


class Mute(nn.Module):
    dtype = torch.qint8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "reduce_range": (ao.HistogramObserver.with_args(reduce_range=True), {"bits": 7, "observer": "histogram"}),
    "limits": (ao.MinMaxObserver.with_args(dtype=torch.qint8, quant_min=-127, quant_max=127), {"limits": (-127, 127)}),
    "odd limits": (ao.MinMaxObserver.with_args(quant_min=0, quant_max=100), {"bits": 7, "limits": (0, 100)}),
    "int8": (ao.MinMaxObserver.with_args(dtype=torch.int8), {"signed": True, "bits": 8}),
    "int16": (ao.MinMaxObserver.with_args(dtype=torch.int16), {"bits": 16}),
    "eps": (ao.MinMaxObserver.with_args(eps=2**-12), {"min_scale": 2**-12}),
    "average": (ao.MovingAverageMinMaxObserver.with_args(averaging_constant=0.2), {"momentum": 0.2}),
    "fixed": (ao.default_fixed_qparams_range_0to1_observer, {"observer": "fixed", "range": (0.0, 255 / 256)}),
    "dynamic": (ao.default_dynamic_quant_observer, {"dynamic": True}),
    "trained": (ao.default_fake_quant, {"learn": "ste", "bits": 7}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_honoured(name: str) -> None:
    factory, expected = SETTINGS[name]
    spec = fq.QConfig(factory, None).activation
    assert {key: getattr(spec, key) for key in expected} == expected


def test_channels_and_learned_ranges() -> None:
    spec = fq.QConfig(None, ao.PerChannelMinMaxObserver.with_args(dtype=torch.qint8, ch_axis=1)).weight
    assert isinstance(spec, fq.Spec) and (spec.granularity, spec.axis) == ("per_channel", 1)
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    found = fq.QConfig(Learnable.with_args(observer=ao.MinMaxObserver), None).activation
    assert found is not None and found.learn == "lsq+"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (ao.MinMaxObserver.with_args(dtype=torch.qint32), "dtype=torch.qint32"),
        (ao.MinMaxObserver(), "not an instance"),
        (ao.RecordingObserver, "no scale and zero point"),
        (ao.PlaceholderObserver.with_args(dtype=torch.quint8), "is_dynamic=True"),
        (ao.PlaceholderObserver.with_args(dtype=torch.bfloat16), "torch.bfloat16"),
        (Mute, "no scale and zero point"),
        (type("Own", (ao.FakeQuantize,), {}), "a forward of its own"),
    ],
    ids=["int32", "instance", "recording", "placeholder", "bfloat16", "mute", "fake_quantize"],
)
def test_what_cannot_be_honoured_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(fq.ConfigError, match=message):
        fq.QConfig(activation=factory)


def test_an_observer_of_the_users_own_is_run(tmp_path: Path) -> None:
    mapping = fq.QConfigMapping().set_global(ao.QConfig(activation=Fixed, weight=Plain))
    prepared = copy.deepcopy(fq.prepare_fx(net(), mapping, (X,)))
    fq.calibrate(prepared, [X])
    plain = fq.convert_fx(prepared, engine="reference")
    assert "0.5, 3, 0, 255" in plain.code
    weight = plain.get_submodule("0")
    torch.testing.assert_close(weight.weight_scale, net()[0].weight.abs().max() / 64)
    assert int(weight.weight.abs().max()) == 64
    fq.save(converted := fq.convert_fx(prepared), tmp_path / "own.fq")
    assert torch.equal(fq.load(tmp_path / "own.fq")(X), converted(X))
    assert torch.equal(fq.freeze(prepared)(X), plain(X))


def test_an_observer_of_the_users_own_trains() -> None:
    qconfig = fq.QConfig(ao.FakeQuantize.with_args(observer=Fixed), ao.default_weight_fake_quant)
    prepared = fq.prepare_qat_fx(net().train(), {"": qconfig}, (X,))
    prepared(X).sum().backward()
    assert "0.5, 3, 0, 255" in fq.convert_fx(prepared.eval(), engine="reference").code


class Wrong(Plain):
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(-1.0), torch.tensor(0)


def test_a_wrong_answer_of_an_observer_names_it() -> None:
    prepared = fq.calibrate(fq.prepare_fx(net(), {"": fq.QConfig(Wrong, Plain)}, (X,)), [X])
    with pytest.raises(fq.ConfigError, match=r"Wrong.calculate_qparams\(\) for .* not a positive number"):
        fq.convert_fx(prepared)


@pytest.mark.parametrize("name", ["float16_dynamic_qconfig", "float16_static_qconfig"])
def test_float16_weights(name: str, tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(10, 4), nn.Conv1d(4, 4, 3, padding=1)
            self.rnn, self.out = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, index: Tensor) -> Tensor:
            x = self.conv(self.table(index).transpose(1, 2)).relu()
            return self.out(self.rnn(x.transpose(1, 2))[0])

    model, index = Tagger().eval(), torch.arange(10).view(2, 5)
    assert as_qconfig(getattr(ao, name, getattr(ao.qconfig, name))) == fq.QConfig(weight="float16")
    prepared = fq.prepare_fx(model, {"": getattr(ao.qconfig, name)}, (index,))
    converted = fq.convert_fx(prepared)
    rows = {row.path: row for row in fq.explain(converted) if row.is_weighted}
    assert {row.status for row in rows.values()} == {"float16"}
    assert "float16" in rows["out"].reason
    dtypes = {key: value.dtype for key, value in converted.state_dict().items()}
    assert {dtype for key, dtype in dtypes.items() if key.endswith("weight")} == {torch.float16}
    assert 60 < sqnr_db(model(index), converted(index)) < 200
    torch.testing.assert_close(fq.freeze(prepared)(index), converted(index))
    fq.save(converted, tmp_path / "half.fq")
    assert torch.equal(fq.load(tmp_path / "half.fq", model)(index), converted(index))


def test_a_weight_beyond_float16_is_refused() -> None:
    model = net()
    model[0].weight.data[0, 0] = 1e6
    prepared = fq.prepare_fx(model, {"": fq.QConfig(weight="float16")}, (X,))
    with pytest.raises(fq.CalibrationError, match=r"'0.weight' .* beyond float16"):
        fq.convert_fx(prepared)
