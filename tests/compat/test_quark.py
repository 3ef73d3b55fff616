"""AMD Quark's guide for its FX mode, as it is written, with other import lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fxquant import ConfigError, explain
from fxquant.compat.quark import (
    Config,
    Dtype,
    ExporterConfig,
    JsonExporterConfig,
    LSQObserver,
    ModelExporter,
    ModelQuantizer,
    PerChannelMinMaxObserver,
    PerTensorMinMaxObserver,
    PerTensorPowOf2MinMSEObserver,
    QSchemeType,
    QuantizationConfig,
    QuantizationMode,
    QuantizationSpec,
    RoundType,
    ScaleType,
    TQTObserver,
)
from fxquant.numerics.fake_quant import FakeQuant


class SimpleConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.head = nn.Conv2d(16, 8, 3, stride=2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.head(self.relu(self.bn(self.conv(x)))))


def spec(observer: type, scale: ScaleType = ScaleType.float) -> QuantizationSpec:
    return QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=observer,
        symmetric=True,
        scale_type=scale,
        round_method=RoundType.half_even,
        is_dynamic=False,
    )


def config(one: QuantizationSpec) -> Config:
    layer = QuantizationConfig(weight=one, input_tensors=one, output_tensors=one, bias=one)
    return Config(global_quant_config=layer, quant_mode=QuantizationMode.fx_graph_mode)


def sqnr(a: Tensor, b: Tensor) -> float:
    return float(10 * torch.log10(a.pow(2).sum() / (a - b).pow(2).sum()))


@pytest.mark.parametrize(
    "one",
    [
        spec(PerTensorMinMaxObserver),
        spec(PerTensorPowOf2MinMSEObserver),
        spec(TQTObserver, ScaleType.pof2),
        spec(LSQObserver),
    ],
    ids=["float scales", "powers of two", "tqt", "lsq"],
)
def test_the_guide_from_export_to_files(one: QuantizationSpec, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SimpleConv().eval()
    example_inputs = (torch.rand(1, 3, 16, 16),)
    graph_model = torch.export.export(model, example_inputs).module()
    loader = [torch.rand(2, 3, 16, 16) for _ in range(3)]

    quantizer = ModelQuantizer(config(one))
    quantized = quantizer.quantize_model(graph_model, loader)
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert 15 < sqnr(model(x), quantized(x)) < 60

    optimizer = torch.optim.SGD(quantized.parameters(), 1e-3)
    quantized.train()
    quantized(x).sum().backward()
    optimizer.step()

    frozen = quantizer.freeze(quantized.eval())
    exporter = ModelExporter(
        config=ExporterConfig(json_export_config=JsonExporterConfig()), export_dir=tmp_path / "out"
    )
    file = exporter.export_onnx_model(frozen, torch.rand(1, 3, 16, 16))
    assert file.is_file()
    tensors = json.loads(file.with_suffix(".json").read_text())["regions"][""]["tensors"]
    weights = {name: row for name, row in tensors.items() if row["of"] == "weight"}
    assert {"conv.weight", "head.weight"} <= weights.keys()
    positions = [row["position"] for row in weights.values()]
    assert all(p is not None for p in positions) == (one.spec().scale == "pow2")


def test_without_data_the_ranges_come_from_training() -> None:
    quantized = ModelQuantizer(config(spec(PerTensorMinMaxObserver))).quantize_model(SimpleConv(), [])
    x = torch.rand(2, 3, 16, 16)
    quantized(x)
    fake = [module for module in quantized.modules() if isinstance(module, FakeQuant)]
    assert fake
    assert all(module.has_range for module in fake)


def test_a_program_that_was_exported_for_one_picture_trains_on_batches_without_data_before() -> None:
    program = torch.export.export(SimpleConv().eval(), (torch.rand(1, 3, 16, 16),)).module()
    quantized = ModelQuantizer(config(spec(PerTensorMinMaxObserver))).quantize_model(program, [])
    quantized.train()(torch.rand(4, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in quantized.parameters())


def test_a_program_with_an_open_batch_takes_whole_batches() -> None:
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(SimpleConv().eval(), (torch.rand(2, 3, 8, 8),), dynamic_shapes=({0: batch},)).module()
    quantizer = ModelQuantizer(config(spec(PerTensorMinMaxObserver)))
    model = quantizer.quantize_model(program, [torch.rand(4, 3, 8, 8)])
    x = torch.rand(7, 3, 8, 8)
    assert sqnr(program(x), quantizer.freeze(model)(x)) > 20


def test_batch_norms_of_a_program_join_their_convolutions_and_train() -> None:
    program = torch.export.export(SimpleConv().eval(), (torch.rand(1, 3, 16, 16),)).module()
    quantizer = ModelQuantizer(config(spec(PerTensorMinMaxObserver)))
    quantized = quantizer.quantize_model(program, [{"x": torch.rand(2, 3, 16, 16)}])
    assert all(row.status == "int8" for row in explain(quantized))
    before = quantized.state_dict()["bn.running_mean"].clone()
    quantized.train()(torch.rand(4, 3, 16, 16))
    assert not torch.equal(quantized.state_dict()["bn.running_mean"], before)


def test_layers_by_name_by_type_and_left_out() -> None:
    eight = QuantizationConfig(weight=spec(PerTensorMinMaxObserver), input_tensors=spec(PerTensorMinMaxObserver))
    four = QuantizationSpec(dtype=Dtype.int4, observer_cls=PerChannelMinMaxObserver, ch_axis=0)
    rule = Config(
        global_quant_config=eight,
        layer_type_quant_config={nn.Linear: QuantizationConfig(weight=four)},
        exclude=["*head*"],
    ).rule(training=False)
    assert rule("body.0", "linear", nn.Linear).weight.bits == 4
    assert rule("body.1", "conv2d", nn.Conv2d).weight.bits == 8
    assert rule("head.0", "linear", nn.Linear) == "float"


@pytest.mark.parametrize("where", ["exclude", "layer_quant_config"])
def test_a_name_that_no_layer_has_is_an_error(where: str) -> None:
    one = spec(PerTensorMinMaxObserver)
    layer = QuantizationConfig(weight=one, input_tensors=one, output_tensors=one, bias=one)
    given: dict[str, object] = {"exclude": ["hed*"]} if where == "exclude" else {where: {"hed*": layer}}
    x = torch.randn(2, 3, 8, 8)
    model = torch.export.export(SimpleConv().eval(), (x,)).module()
    with pytest.raises(ConfigError, match=r"names 'hed\*', which is no op or module. Closest: 'head'"):
        ModelQuantizer(Config(global_quant_config=layer, **given)).quantize_model(model, [x])  # type: ignore[arg-type]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="per_channel"):
        QuantizationSpec(dtype=Dtype.int8, qscheme=QSchemeType.per_tensor, observer_cls=PerChannelMinMaxObserver)


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected one of Dtype\.int8"):
        QuantizationSpec(dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a class derived from ObserverBase"):
        QuantizationSpec(dtype=Dtype.int8, observer_cls=int)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a QTensorConfig"):
        QuantizationConfig(weight=Dtype.int8)  # type: ignore[arg-type]
    layer = QuantizationConfig(weight=spec(PerTensorMinMaxObserver))
    with pytest.raises(ConfigError, match=r"exclude=.head.\): expected a list"):
        Config(global_quant_config=layer, exclude="head")
    with pytest.raises(ConfigError, match="takes a Config, not a QTensorConfig"):
        ModelQuantizer(spec(PerTensorMinMaxObserver))  # type: ignore[arg-type]
