"""The converted graph: plain integer tensors, one copy of each weight, small files, clear errors."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph import torch_compat
from fxquant.numerics.affine import sqnr_db
from fxquant.targets.defaults import Mode


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
    )


X = (2, 3, 8, 8)


def saved_size(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def test_weights_are_int8_and_the_file_is_four_times_smaller() -> None:
    model = net().eval()
    quantized = fq.quantize(model, [torch.randn(X)])
    assert {name for name, _ in quantized.named_parameters()} == {f"{i}.weight_scale" for i in (0, 2, 5)}
    assert {quantized.get_buffer(f"{i}.weight").dtype for i in (0, 2, 5)} == {torch.int8}
    assert saved_size(quantized) < 0.3 * saved_size(model)


def test_qparams_are_plain_numbers_in_the_graph() -> None:
    quantized = fq.quantize(net().eval(), [torch.randn(X)], engine="reference")
    quantizes = [node for node in quantized.graph.nodes if node.target is torch_compat.QUANTIZE]
    assert [node.name for node in quantizes] == ["input_1_q", "_1_q", "_3_q", "_4_q"]
    for node in quantizes:
        assert [type(arg) for arg in node.args[1:]] == [float, int, int, int, torch.dtype]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.fc(self.fc(self.embed(ids))))


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_a_module_called_twice_and_tied_weights_are_stored_once(effort: str) -> None:
    model = Shared().eval()
    ids = torch.randint(0, 50, (2, 6))
    quantized = fq.quantize(model, [ids], engine="reference", effort=effort)
    assert quantized.embed.integers is quantized.head.integers
    assert sum(node.target is torch_compat.DEQUANTIZE_CHANNEL for node in quantized.graph.nodes) == 2
    assert sqnr_db(model(ids), quantized(ids)) > 30


@pytest.mark.broad
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_other_float_dtypes(dtype: torch.dtype, mode: str) -> None:
    model = net().eval().to(dtype)
    x = torch.randn(X, dtype=dtype)
    quantized = fq.quantize(model, [x], mode=mode)
    out = quantized(x)
    assert out.dtype == dtype
    assert sqnr_db(model(x), out) > 25


WEIGHTS = {
    "int4_per_group": fq.Spec(bits=4, granularity="per_group", group_size=32, observer="histogram"),
    "int8_per_tensor": fq.Spec(observer="minmax"),
    "uint8_asymmetric": fq.Spec(signed=False, symmetric=False, granularity="per_channel", observer="minmax"),
    "int16": fq.Spec(bits=16, granularity="per_channel", observer="minmax"),
    "pow2": fq.Spec(granularity="per_channel", scale="pow2", observer="minmax"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_specs(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval(), torch.randn(8, 64)
    mapping = fq.QConfigMapping().set_global(fq.QConfig(weight=WEIGHTS[name]))
    quantized = fq.quantize(model, qconfig_mapping=mapping, mode="weight_only", example_inputs=(x,))
    assert sqnr_db(model(x), quantized(x)) > (15 if name == "int4_per_group" else 35)


@pytest.mark.parametrize("name", WEIGHTS)
def test_embedding_weight_specs(name: str) -> None:
    model, ids = nn.Sequential(nn.Embedding(40, 64)).eval(), torch.randint(0, 40, (2, 5))
    mapping = fq.QConfigMapping().set_global(fq.QConfig(weight=WEIGHTS[name]))
    quantized = fq.quantize(model, qconfig_mapping=mapping, mode="weight_only", example_inputs=(ids,))
    assert sqnr_db(model(ids), quantized(ids)) > (15 if name == "int4_per_group" else 30)


ACTIVATIONS = {
    "int8_symmetric": fq.Spec(),
    "int16": fq.Spec(bits=16),
    "uint16": fq.Spec(bits=16, signed=False, symmetric=False),
    "u7": fq.Spec(bits=7, signed=False, symmetric=False),
    "pow2_floor": fq.Spec(scale="pow2", rounding="floor", bits=10),
    "half_up": fq.Spec(rounding="half_up"),
    "dynamic_symmetric": fq.Spec(dynamic=True),
    **{observer: fq.Spec(observer=observer) for observer in ("minmax", "moving_average", "percentile", "entropy")},
}


@pytest.mark.broad
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_specs(name: str) -> None:
    model, x = net().eval(), torch.randn(X)
    qconfig = fq.QConfig(activation=ACTIVATIONS[name], weight=fq.default_qconfig.weight)
    quantized = fq.quantize(model, [x], qconfig_mapping=fq.QConfigMapping().set_global(qconfig))
    assert sqnr_db(model(x), quantized(x)) > (15 if name == "entropy" else 25)


def test_quantized_bias() -> None:
    model, x = net().eval(), torch.randn(X)
    qconfig = fq.QConfig(
        activation=fq.default_qconfig.activation,
        weight=fq.default_qconfig.weight,
        bias=fq.Spec(bits=16, observer="minmax"),
    )
    quantized = fq.quantize(model, [x], qconfig_mapping=fq.QConfigMapping().set_global(qconfig))
    assert quantized.get_buffer("0.bias").dtype == torch.int16
    assert sqnr_db(model(x), quantized(x)) > 25


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reflect = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(4, 4, 3, padding="same")
        self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.same(self.reflect(x)), output_size=[16, 16])


def test_padding_modes_and_output_size() -> None:
    model, x = Padded().eval(), torch.randn(X)
    quantized = fq.quantize(model, [x])
    assert quantized(x).shape == model(x).shape == (2, 4, 16, 16)
    assert sqnr_db(model(x), quantized(x)) > 30


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_model_on_meta_says_so(mode: Mode) -> None:
    model, x = net().eval(), torch.randn(X)
    quantized = fq.quantize(model, [x], mode=mode, engine="onednn")
    state = {name: value.clone() for name, value in quantized.state_dict().items()}
    made = quantized(x)
    with pytest.raises(fq.StageError, match=r"on the device meta.* model\.to_empty"):
        quantized.to("meta")(x)
    quantized.to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(quantized(x), made)


def test_wrong_order_is_a_clear_error() -> None:
    model, x = net().eval(), torch.randn(X)
    mapping = fq.get_default_qconfig_mapping()
    prepared = fq.prepare_fx(model, mapping, (x,))
    with pytest.raises(fq.StageError, match="converted without calibration"):
        fq.convert_fx(prepared)(x)
    with pytest.raises(fq.StageError, match="plain Sequential"):
        fq.convert_fx(model)
    with pytest.raises(fq.StageError, match="already prepared"):
        fq.prepare_fx(prepared, mapping, (x,))
    with pytest.raises(fq.StageError, match="eval"):
        fq.prepare_fx(net().train(), mapping, (x,))
    prepared.train()
    with pytest.raises(fq.StageError, match="train mode"):
        prepared(x)
    prepared.eval()
    fq.calibrate(prepared, [x])
    converted = fq.convert_fx(prepared)
    with pytest.raises(fq.StageError, match="is converted"):
        fq.convert_fx(converted)
    with pytest.raises(fq.StageError, match="already converted"):
        fq.prepare_fx(converted, mapping, (x,))
    with pytest.raises(fq.StageError, match="already converted"):  # not that it should be in train mode
        fq.prepare_qat_fx(converted, fq.get_default_qat_qconfig_mapping(), (x,))


def test_training_configs_are_refused() -> None:
    qconfig = fq.QConfig(activation=fq.Spec(learn="lsq"), weight=fq.Spec(learn="lsq"))
    with pytest.raises(fq.ConfigError, match="for training"):
        fq.prepare_fx(net().eval(), fq.QConfigMapping().set_global(qconfig), (torch.randn(X),))


def test_nan_names_the_tensor() -> None:
    prepared = fq.prepare_fx(net().eval(), fq.get_default_qconfig_mapping(), (torch.randn(X),))
    with pytest.raises(fq.CalibrationError, match="tensor 'input_1' holds NaN"):
        prepared(torch.full(X, float("nan")))


def test_unknown_engine() -> None:
    with pytest.raises(fq.ConfigError, match="engine 'gpu' is unknown"):
        fq.quantize(net().eval(), [torch.randn(X)], engine="gpu")


def test_conversion_without_training_makes_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a block is for training, and for frozen models")

    monkeypatch.setattr("fxquant.passes.insert_blocks.QatBlock.__init__", refuse)
    model, x = net().eval(), torch.randn(X)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    fq.calibrate(prepared, [x])
    assert fq.convert_fx(prepared, engine="reference").get_buffer("0.weight").dtype == torch.int8
    with pytest.raises(AssertionError, match="for frozen models"):
        fq.freeze(prepared)


def test_what_is_made_in_inference_mode_has_plain_tensors() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    with torch.inference_mode():
        made = [fq.quantize(model, [x], engine="reference"), fq.quantize(model, [x], engine="onednn")]
    assert not any(tensor.is_inference() for each in made for tensor in each.state_dict().values())
