"""Scripts as they are written for torch.ao's FX flow; only the lines that import it are changed."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxquant import explain
from fxquant.compat import (
    ConvertCustomConfig,
    DeQuantStub,
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    PrepareCustomConfig,
    QConfig,
    QConfigMapping,
    QuantStub,
    convert_fx,
    convert_to_reference_fx,
    default_dynamic_qconfig,
    default_per_channel_qconfig,
    default_per_channel_weight_observer,
    default_qat_qconfig,
    default_qconfig,
    default_symmetric_qnnpack_qconfig,
    default_weight_observer,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    float16_dynamic_qconfig,
    float_qparams_weight_only_qconfig,
    freeze_bn_stats,
    fuse_fx,
    get_default_qat_qconfig_mapping,
    get_default_qconfig,
    get_default_qconfig_mapping,
    get_observer_state_dict,
    load_observer_state_dict,
    per_channel_dynamic_qconfig,
    prepare_fx,
    prepare_qat_fx,
    update_bn_stats,
)
from fxquant.numerics.affine import sqnr_db

IMAGES = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
WORDS = torch.arange(20).view(4, 5) % 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(self.quant(x))))
        x = self.relu(self.conv2(x) + x)
        return self.dequant(self.fc(x.mean([2, 3])))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.decoder = nn.Embedding(10, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(words))[0])


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for image in IMAGES:
            model(image)


def train(model: nn.Module, steps: int = 2) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for image in IMAGES[:steps]:
        optimizer.zero_grad()
        model(image).square().mean().backward()
        optimizer.step()


def own_observers(model: nn.Module) -> nn.Module:
    qconfig = QConfig(
        activation=HistogramObserver.with_args(reduce_range=True), weight=default_per_channel_weight_observer
    )
    qconfig_mapping = QConfigMapping().set_global(qconfig).set_object_type(nn.Linear, default_per_channel_qconfig)
    prepared = prepare_fx(copy.deepcopy(model), qconfig_mapping, (IMAGES[0],))
    evaluate(prepared)
    return convert_fx(prepared)


def minmax_by_type(model: nn.Module) -> nn.Module:
    my_qconfig = QConfig(MinMaxObserver.with_args(dtype=torch.quint8), MinMaxObserver.with_args(dtype=torch.qint8))
    linear = QConfig(
        activation=MovingAverageMinMaxObserver.with_args(averaging_constant=0.1, qscheme=torch.per_tensor_affine),
        weight=PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
    )
    mapping = QConfigMapping().set_global(my_qconfig).set_module_name_object_type_order("", nn.Linear, 0, linear)
    prepared = prepare_fx(model, mapping, example_inputs=(IMAGES[0],))
    evaluate(prepared)
    return convert_to_reference_fx(prepared)


def tutorial_dict(model: nn.Module) -> nn.Module:
    qconfig = get_default_qconfig("fbgemm", version=0)
    qconfig_dict = {
        "": qconfig,
        "object_type": [(nn.Conv2d, qconfig), ("torch.nn.functional.add", qconfig)],
        "module_name_regex": [("conv[0-9]+", qconfig)],
        "module_name": [("fc", None)],
        "standalone_module_name": ["conv2"],
    }
    prepared = prepare_fx(
        model, qconfig_dict, (IMAGES[0],), prepare_custom_config_dict={"preserved_attributes": ["fc"]}
    )
    evaluate(prepared)
    return convert_fx(prepared, convert_custom_config_dict={"preserved_attributes": ["fc"]})


def fuse_then_mapping(model: nn.Module) -> nn.Module:
    fused = fuse_fx(model.eval())
    mapping = get_default_qconfig_mapping("qnnpack").set_module_name("fc", default_qconfig)
    custom = PrepareCustomConfig().set_preserved_attributes(["fc"])
    prepared = prepare_fx(fused, mapping, (IMAGES[0],), custom)
    evaluate(prepared)
    return convert_fx(prepared, ConvertCustomConfig().set_preserved_attributes(["fc"]))


def qat(model: nn.Module) -> nn.Module:
    prepared = prepare_qat_fx(model.train(), get_default_qat_qconfig_mapping("fbgemm", version=1), (IMAGES[0],))
    train(prepared)
    prepared.apply(disable_observer)
    prepared.apply(freeze_bn_stats)
    train(prepared)
    return convert_fx(prepared.eval())


def test_torch_ao_s_names_for_batch_norms_serve_here() -> None:
    prepared = prepare_qat_fx(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), get_default_qat_qconfig_mapping(), IMAGES[0]
    )
    prepared.apply(freeze_bn_stats)
    before = prepared[1].running_mean.clone()
    prepared(IMAGES[0])
    assert torch.equal(prepared[1].running_mean, before)
    prepared.apply(update_bn_stats)
    prepared(IMAGES[0])
    assert not torch.equal(prepared[1].running_mean, before)


def calibrate_then_train(model: nn.Module) -> nn.Module:
    prepared = prepare_qat_fx(model.train(), QConfigMapping().set_global(default_qat_qconfig), (IMAGES[0],))
    prepared.apply(enable_observer).apply(disable_fake_quant)
    evaluate(prepared)
    prepared.apply(disable_observer).apply(enable_fake_quant)
    train(prepared)
    prepared.eval()
    return convert_fx(prepared)


def few_bits(model: nn.Module) -> nn.Module:
    act = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=63, dtype=torch.quint8)
    weight = FakeQuantize.with_args(
        observer=MovingAveragePerChannelMinMaxObserver,
        quant_min=-32,
        quant_max=31,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )
    prepared = prepare_qat_fx(model.train(), {"": QConfig(activation=act, weight=weight)}, (IMAGES[0],))
    train(prepared, steps=4)
    return convert_fx(prepared.eval())


def save_observers(model: nn.Module) -> nn.Module:
    mapping = get_default_qconfig_mapping("x86")
    prepared = prepare_fx(copy.deepcopy(model), mapping, (IMAGES[0],))
    evaluate(prepared)
    torch.save(get_observer_state_dict(prepared), file := io.BytesIO())
    file.seek(0)
    again = prepare_fx(copy.deepcopy(model), mapping, (IMAGES[0],))
    load_observer_state_dict(again, torch.load(file))
    return convert_fx(again)


def symmetric_qnnpack(model: nn.Module) -> nn.Module:
    backends: Any = pytest.importorskip("torch.ao.quantization.backend_config")
    mapping = QConfigMapping().set_global(default_symmetric_qnnpack_qconfig)
    backend_config = backends.get_qnnpack_backend_config()
    prepared = prepare_fx(model, mapping, (IMAGES[0],), backend_config=backend_config)
    evaluate(prepared)
    return convert_fx(prepared, backend_config=backend_config)


def dynamic(model: nn.Module) -> nn.Module:
    mapping = (
        QConfigMapping()
        .set_object_type(nn.Embedding, float_qparams_weight_only_qconfig)
        .set_object_type(nn.LSTM, default_dynamic_qconfig)
        .set_object_type(nn.Linear, per_channel_dynamic_qconfig)
    )
    return convert_fx(prepare_fx(model, mapping, (WORDS,)))


def half(model: nn.Module) -> nn.Module:
    qconfig_dict = {"object_type": [(nn.LSTM, float16_dynamic_qconfig), (nn.Linear, float16_dynamic_qconfig)]}
    return convert_fx(prepare_fx(model, qconfig_dict, (WORDS,)))


def own_class(model: nn.Module) -> nn.Module:
    class Clipped(MinMaxObserver):
        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            return self._calculate_qparams(0.9 * self.min_val, 0.9 * self.max_val)

    mapping = QConfigMapping().set_global(QConfig(Clipped.with_args(dtype=torch.quint8), default_weight_observer))
    prepared = prepare_fx(model, mapping, (IMAGES[0],))
    evaluate(prepared)
    return convert_fx(prepared)


SCRIPTS: dict[Callable[[nn.Module], nn.Module], tuple[float, set[str]]] = {
    own_observers: (25, {"int8"}),
    minmax_by_type: (25, {"int8"}),
    tutorial_dict: (25, {"int8", "float"}),
    fuse_then_mapping: (25, {"int8"}),
    qat: (20, {"int8"}),
    calibrate_then_train: (20, {"int8"}),
    few_bits: (12, {"int8"}),
    save_observers: (25, {"int8"}),
    symmetric_qnnpack: (25, {"int8"}),
    dynamic: (25, {"weight_only", "dynamic"}),
    half: (60, {"float16", "float"}),
    own_class: (15, {"int8"}),
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_runs(script: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    least, statuses = SCRIPTS[script]
    model, x = (Tagger(), WORDS) if script in (dynamic, half) else (Net(), IMAGES[0])
    expected = copy.deepcopy(model).eval()(x)
    quantized = script(model.eval())
    assert sqnr_db(expected, quantized(x)) > least
    assert {row.status for row in explain(quantized) if row.is_weighted} == statuses
