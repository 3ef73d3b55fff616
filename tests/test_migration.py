"""Code written for torch.ao.quantization.quantize_fx runs after changing its import lines only."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant import QConfigMapping, default_dynamic_qconfig, get_default_qconfig, get_default_qconfig_mapping
from fxquant.numerics.affine import sqnr_db
from fxquant.quantize_fx import convert_fx, convert_to_reference_fx, fuse_fx, prepare_fx


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 4)
        self.classes = ["a", "b", "c", "d"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn(self.conv(x)))
        return self.fc(x.mean([2, 3]))


DATA = [torch.randn(4, 3, 8, 8) for _ in range(4)]


def calibrate(model: nn.Module, data: list[torch.Tensor]) -> None:
    model.eval()
    with torch.no_grad():
        for image in data:
            model(image)


def test_static_tutorial_flow() -> None:
    model_to_quantize = copy.deepcopy(Net())
    model_to_quantize.eval()
    qconfig_mapping = get_default_qconfig_mapping("x86")
    example_inputs = (next(iter(DATA)),)
    prepared_model = prepare_fx(model_to_quantize, qconfig_mapping, example_inputs)
    calibrate(prepared_model, DATA)
    quantized_model = convert_fx(prepared_model)
    assert sqnr_db(model_to_quantize(DATA[0]), quantized_model(DATA[0])) > 25
    assert quantized_model.classes == ["a", "b", "c", "d"]


def test_dynamic_tutorial_flow() -> None:
    model = Net().eval()
    qconfig_mapping = QConfigMapping().set_global(default_dynamic_qconfig)
    prepared = prepare_fx(model, qconfig_mapping, (DATA[0],))
    quantized = convert_fx(prepared)
    assert sqnr_db(model(DATA[0]), quantized(DATA[0])) > 25


def test_mapping_with_every_setter() -> None:
    qconfig = get_default_qconfig("qnnpack")
    mapping = (
        QConfigMapping()
        .set_global(qconfig)
        .set_object_type(nn.Conv2d, qconfig)
        .set_object_type(torch.nn.functional.linear, qconfig)
        .set_module_name_regex("conv.*", qconfig)
        .set_module_name("fc", None)
    )
    prepared = prepare_fx(Net().eval(), mapping, (DATA[0],))
    calibrate(prepared, DATA)
    quantized = convert_to_reference_fx(prepared)
    assert quantized.fc.weight.dtype == torch.float32
    assert quantized.conv.weight.dtype == torch.int8


def test_qconfig_dict() -> None:
    prepared = prepare_fx(Net().eval(), {"": get_default_qconfig("fbgemm"), "module_name": [("fc", None)]}, (DATA[0],))
    calibrate(prepared, DATA)
    assert convert_fx(prepared)(DATA[0]).shape == (4, 4)


def test_fuse_first() -> None:
    model = Net().eval()
    fused = fuse_fx(model)
    assert fused.classes == model.classes
    prepared = prepare_fx(fused, get_default_qconfig_mapping("onednn"), (DATA[0],))
    calibrate(prepared, DATA)
    assert sqnr_db(model(DATA[0]), convert_fx(prepared)(DATA[0])) > 25


def test_objects_made_by_torch_ao() -> None:
    ao = pytest.importorskip("torch.ao.quantization")
    model = Net().eval()
    for mapping in (
        ao.get_default_qconfig_mapping("x86"),
        ao.get_default_qconfig_mapping("qnnpack"),
        ao.QConfigMapping().set_global(ao.get_default_qconfig("fbgemm")).set_module_name("fc", None),
        {"": ao.default_qconfig},
    ):
        prepared = prepare_fx(model, mapping, (DATA[0],))
        calibrate(prepared, DATA)
        assert sqnr_db(model(DATA[0]), convert_fx(prepared)(DATA[0])) > 20


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop, self.same = nn.Linear(4, 4), nn.Dropout(0.1), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.same(self.drop(self.fc(x))), 0.2, self.training)


@pytest.mark.parametrize("named", [nn.Dropout, nn.Identity, nn.functional.dropout, "dropout"])
@pytest.mark.parametrize("method", ["auto", "export", "piecewise"])
def test_rules_may_name_ops_that_do_nothing_at_inference(named: object, method: str) -> None:
    if method != "auto" and not isinstance(named, type):
        pytest.skip("no graph has that call")
    mapping = fq.get_default_qconfig_mapping("x86").set_object_type(named, None)
    prepared = fq.prepare_fx(Dropped().eval(), mapping, (torch.randn(2, 4),), method=method)
    assert fq.explain(prepared).int8_share == 1.0


def test_default_rules_of_torch_ao_as_a_dict_name_ops_that_a_model_need_not_have() -> None:
    rules = torch.ao.quantization.get_default_qconfig_mapping("x86").to_dict()
    assert fq.explain(fq.prepare_fx(Dropped().eval(), rules, (torch.randn(2, 4),))).int8_share == 1.0


@pytest.mark.parametrize("method", ["auto", "symbolic", "export", "piecewise"])
def test_a_model_with_nothing_to_quantize_says_so(method: str) -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + 1

    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="nothing in Nothing will be quantized"):
        prepared = fq.prepare_fx(Nothing().eval(), fq.get_default_qconfig_mapping("x86"), (x,), method=method)
    assert "nothing to quantize" in fq.explain(prepared).summary()
    quantized = fq.convert_fx(fq.calibrate(prepared, [x]))
    assert torch.equal(quantized(x), torch.relu(x) + 1)
