"""PrepareCustomConfig and ConvertCustomConfig: leaves, standalone modules, custom modules, preserved attributes."""

from __future__ import annotations

import copy
import enum
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.config.custom_config import PrepareCustomConfig, as_prepare_config, as_quant_type
from fxquant.errors import CaptureError, ConfigError
from fxquant.graph.region import Region, regions
from fxquant.numerics.affine import sqnr_db

MAPPING = fq.get_default_qconfig_mapping("x86")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = Block(), Block(), nn.Linear(8, 4)
        self.classes = ["cat", "dog"]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def net() -> tuple[Net, list[Tensor]]:
    return Net().eval(), [torch.randn(16, 8) for _ in range(4)]


def called(model: nn.Module) -> list[str]:
    assert isinstance(model, Region)
    targets = (str(node.target) for node in model.graph.nodes if node.op == "call_module")
    return [target for target in targets if not target.startswith(("quantizers", "statistics"))]


def status(model: nn.Module) -> dict[str, str]:
    return {row.path: row.status for row in fq.explain(model)}


@pytest.mark.parametrize(
    "config",
    [
        {"non_traceable_module_name": "middle"},
        {"non_traceable_module_names": ["middle"]},
        PrepareCustomConfig().set_non_traceable_module_names(["middle"]),
    ],
    ids=["string", "list", "object"],
)
def test_a_non_traceable_name_is_a_float_leaf(config: Any) -> None:
    model, data = net()
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), config)
    assert called(prepared) == ["first.fc", "first.act", "middle", "last"]
    fq.calibrate(prepared, data)
    found = status(fq.convert_fx(prepared))
    assert found["first.fc"] == found["last"] == "int8" and found["middle"] == "float"
    assert not any(path.startswith("middle.") for path in found)


def test_a_non_traceable_class_is_a_float_leaf_everywhere() -> None:
    model, data = net()
    prepared = fq.prepare_fx(
        model, MAPPING, (data[0],), prepare_custom_config_dict={"non_traceable_module_class": [Block]}
    )
    assert called(prepared) == ["first", "middle", "last"]


@pytest.mark.parametrize("method", ["auto", "symbolic", "piecewise"])
def test_a_non_traceable_module_is_left_alone_by_every_method(method: Any) -> None:
    model, data = net()
    config = {"non_traceable_module_name": "middle"}
    account = fq.explain(fq.prepare_fx(model, MAPPING, (data[0],), config, method=method))
    assert not any(row.path.startswith("middle.") for row in account)
    (left,) = account.left
    assert (left.path, left.module) == ("middle", "Block")
    assert "non-traceable" in left.reason and __file__ in left.where and "custom config" in left.hint


def test_a_non_traceable_module_in_code_that_does_not_trace_is_left_alone() -> None:
    class Branching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    model, data = Branching().eval(), torch.randn(2, 8)
    account = fq.explain(fq.prepare_fx(model, MAPPING, (data,), {"non_traceable_module_name": "middle"}))
    assert account.method == "piecewise"
    assert "middle" in {left.path for left in account.left}
    assert not any(row.path.startswith("middle") for row in account)


@pytest.mark.parametrize("named", [{"non_traceable_module_name": "last"}, {"non_traceable_module_class": nn.Linear}])
def test_a_stock_module_can_be_left_alone(named: Any) -> None:
    model, data = net()
    account = {row.path: row for row in fq.explain(fq.prepare_fx(model, MAPPING, (data[0],), named))}
    assert (account["last"].status, account["last"].reason) == ("float", "non-traceable, by the custom config")
    assert account["first.fc"].status == ("int8" if "non_traceable_module_name" in named else "float")


def test_export_refuses_to_leave_a_module_alone() -> None:
    model, data = net()
    with pytest.raises(CaptureError, match="would take 'middle' apart"):
        fq.prepare_fx(model, MAPPING, (data[0],), {"standalone_module_name": [("middle",)]}, method="export")
    with pytest.raises(CaptureError, match="looks into every module"):
        fq.prepare_fx(model, MAPPING, (data[0],), {"non_traceable_module_name": "middle"}, method="export")


def test_a_non_traceable_lstm_stays_stock() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4)).eval(), torch.randn(3, 2, 4)
    prepared = fq.prepare_fx(model, MAPPING, (x,), {"non_traceable_module_class": nn.LSTM})
    assert type(prepared.get_submodule("1")) is nn.LSTM


@pytest.mark.parametrize("key", ["non_traceable_module_name", "standalone_module_name"])
def test_a_name_that_matches_nothing_is_an_error(key: str) -> None:
    model, data = net()
    value = ["midle"] if key.startswith("non") else [("midle",)]
    with pytest.raises(ConfigError, match=re.escape("'midle' matches no module. Closest: 'middle'")):
        fq.prepare_fx(model, MAPPING, (data[0],), {key: value})
    with pytest.warns(UserWarning, match="matches no module"):
        fq.prepare_fx(model, MAPPING, (data[0],), {key: value}, strict=False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"non_traceable_module_nam": ["a"]}, "Closest: 'non_traceable_module_name'"),
        ({"float_to_observed_custom_module_class": {"stattic": {nn.Linear: nn.Linear}}}, "from_float"),
        ({"float_to_observed_custom_module_class": {nn.Linear: nn.Linear}}, "custom modules are given as"),
        ({"input_quantized_indexes": ["x"]}, "list of positions"),
        ({"non_traceable_module_class": [torch.relu]}, "not a class of modules"),
        ({"preserved_attributes": ["clases"]}, "Closest: 'classes'"),
        (7, "is a int"),
    ],
    ids=["key", "from_float", "pairs", "indexes", "class", "attribute", "type"],
)
def test_a_wrong_config_says_what_to_do(config: Any, message: str) -> None:
    model, data = net()
    with pytest.raises(ConfigError, match=message):
        fq.prepare_fx(model, MAPPING, (data[0],), config)


def test_a_custom_module_class_that_the_model_has_not_is_an_error() -> None:
    class Other(nn.Linear):
        @classmethod
        def from_float(cls, module: nn.Module) -> nn.Module:
            return module

    model, data = net()
    config = {"float_to_observed_custom_module_class": {"static": {nn.Bilinear: Other}}}
    with pytest.raises(ConfigError, match="names class Bilinear, of which the model has no module"):
        fq.prepare_fx(model, MAPPING, (data[0],), config)
    with pytest.warns(UserWarning, match="names class Bilinear"):
        fq.prepare_fx(model, MAPPING, (data[0],), config, strict=False)


def test_both_spellings_at_once_are_refused() -> None:
    model, data = net()
    with pytest.raises(ConfigError, match="not both"):
        fq.prepare_fx(model, MAPPING, (data[0],), {}, prepare_custom_config_dict={})


def test_preserved_attributes_stay() -> None:
    model, data = net()
    config = {"preserved_attributes": ["classes"]}
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), config)
    converted = fq.convert_fx(fq.calibrate(prepared, data), convert_custom_config_dict=config)
    assert converted.classes == model.classes
    with pytest.raises(ConfigError, match="preserved_attributes"):
        fq.convert_fx(prepared, {"preserved_attributes": ["clases"]})


def test_an_object_with_to_dict_is_read() -> None:
    class Foreign:
        def to_dict(self) -> dict[str, Any]:
            return {"non_traceable_module_name": ["middle"], "input_quantized_idxs": [0], "standalone_module_name": []}

    config = as_prepare_config(Foreign())
    assert config.non_traceable_module_names == ["middle"] and config.input_quantized_indexes == [0]


def test_quant_types_are_read_by_name() -> None:
    class Other(enum.IntEnum):
        DYNAMIC = 0

    assert as_quant_type(Other.DYNAMIC) is as_quant_type("dynamic") is fq.QuantType.DYNAMIC
    with pytest.raises(ConfigError, match="quant_type 'qat' is unknown"):
        as_quant_type("qat")


# standalone modules


@pytest.mark.parametrize(
    "config",
    [
        {"standalone_module_name": [("middle", None, None, None, None)]},
        PrepareCustomConfig().set_standalone_module_name("middle", None, (torch.randn(2, 8),), None, None),
    ],
    ids=["dict", "object"],
)
def test_a_standalone_module_is_one_call_with_a_region_of_its_own(config: Any) -> None:
    model, data = net()
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), config)
    assert called(prepared) == ["first.fc", "first.act", "middle", "last"]
    assert [path for path, _ in regions(prepared)] == ["", "middle"]
    torch.testing.assert_close(prepared(data[0]), model(data[0]))
    converted = fq.convert_fx(fq.calibrate(prepared, data))
    assert status(converted)["middle.fc"] == "int8"
    assert sqnr_db(model(data[0]), converted(data[0])) > 25


def test_a_standalone_module_has_rules_of_its_own() -> None:
    model, data = net()
    own = fq.QConfigMapping().set_module_name("fc", fq.weight_only_qconfig)
    config = PrepareCustomConfig().set_standalone_module_name("middle", own, None, None, None)
    mapping = fq.get_default_qconfig_mapping("x86").set_module_name("first", None)
    found = status(fq.prepare_fx(model, mapping, (data[0],), config))
    assert found["middle.fc"] == "weight_only" and found["first.fc"] == "float" and found["last"] == "int8"


def test_rules_of_a_standalone_module_that_match_nothing_are_an_error() -> None:
    model, data = net()
    own = fq.QConfigMapping().set_module_name("middle.fc", fq.weight_only_qconfig)
    config = PrepareCustomConfig().set_standalone_module_name("middle", own, None, None, None)
    with pytest.raises(ConfigError, match=re.escape("'middle.fc') matches no module")):
        fq.prepare_fx(model, MAPPING, (data[0],), config)


def test_without_a_mapping_the_rules_of_the_model_hold_in_a_standalone_module() -> None:
    model, data = net()
    mapping = fq.get_default_qconfig_mapping("x86").set_module_name("middle.fc", None)
    config = PrepareCustomConfig().set_standalone_module_class(Block)
    found = status(fq.prepare_fx(model, mapping, (data[0],), config))
    assert found["middle.fc"] == "float" and found["first.fc"] == "int8"


def test_a_custom_config_of_a_standalone_module_holds_inside() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Net()).eval()
    inner = PrepareCustomConfig().set_non_traceable_module_names("first").set_standalone_module_name("middle")
    config = PrepareCustomConfig().set_standalone_module_name("1", None, None, inner, None)
    prepared = fq.prepare_fx(model, MAPPING, (torch.randn(4, 8),), config)
    assert [path for path, _ in regions(prepared)] == ["", "1", "1.middle"]
    found = status(prepared)
    assert found["1.first"] == "float" and found["1.middle.fc"] == "int8" and found["1.last"] == "int8"


def test_integers_between_a_standalone_module_and_its_parent() -> None:
    model, data = net()
    inner = PrepareCustomConfig().set_input_quantized_indexes([0]).set_output_quantized_indexes([0])
    config = PrepareCustomConfig().set_standalone_module_name("middle", None, None, inner, None)
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), config)
    torch.testing.assert_close(prepared(data[0]), model(data[0]))
    fq.calibrate(prepared, data)
    for engine in ("reference", "onednn"):
        converted = fq.convert_fx(prepared, engine=engine)
        seen: list[torch.dtype] = []
        converted.middle.register_forward_hook(lambda m, a, out, seen=seen: seen.extend((a[0].dtype, out.dtype)))
        assert sqnr_db(model(data[0]), converted(data[0])) > 25
        assert seen == [torch.uint8, torch.uint8]


# custom modules


class Gated(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


def test_a_standalone_module_that_does_not_trace_gives_its_own_account(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Net().eval(), torch.randn(4, 8)
    model.middle = Gated().eval()
    with caplog.at_level("INFO", "fxquant"):
        account = fq.explain(fq.prepare_fx(model, MAPPING, (x,), {"standalone_module_name": [("middle",)]}))
    assert account.int8_share == 1.0
    assert [(left.path, left.module) for left in account.left] == [("middle", "Gated")]
    assert "entire model" not in caplog.text


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class ObservedScale(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.largest = weight, 0.0

    @classmethod
    def from_float(cls, module: Scale) -> ObservedScale:
        assert isinstance(module.qconfig, fq.QConfig)
        return cls(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, float(x.abs().max()))
        return x @ self.weight


class QuantizedScale(nn.Module):
    def __init__(self, weight: Tensor, largest: float) -> None:
        super().__init__()
        self.register_buffer("q", torch.round(weight.detach() * 127).to(torch.int8))
        self.largest = largest

    @classmethod
    def from_observed(cls, module: ObservedScale) -> QuantizedScale:
        return cls(module.weight, module.largest)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.q.float() / 127)


MODES = {
    "static": MAPPING,
    "dynamic": fq.QConfigMapping().set_global(fq.default_dynamic_qconfig),
    "weight_only": fq.QConfigMapping().set_global(fq.weight_only_qconfig),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["dict", "object"])
def test_a_custom_module_is_observed_and_quantized(mode: str, form: str) -> None:
    model, data = nn.Sequential(nn.Linear(8, 8), Scale()).eval(), [torch.randn(4, 8) for _ in range(3)]
    prepare: Any = {"float_to_observed_custom_module_class": {mode: {Scale: ObservedScale}}}
    convert: Any = {"observed_to_quantized_custom_module_class": {mode: {ObservedScale: QuantizedScale}}}
    if form == "object":
        prepare = PrepareCustomConfig().set_float_to_observed_mapping(Scale, ObservedScale, fq.QuantType(mode))
        convert = fq.ConvertCustomConfig().set_observed_to_quantized_mapping(
            ObservedScale, QuantizedScale, fq.QuantType(mode)
        )
    prepared = fq.prepare_fx(model, MODES[mode], (data[0],), prepare)
    assert called(prepared) == ["0", "1"] and type(prepared.get_submodule("1")) is ObservedScale
    assert status(prepared)["1"] == {"static": "int8"}.get(mode, mode)
    assert not hasattr(model[1], "qconfig")
    fq.calibrate(prepared, data)
    converted = fq.convert_fx(prepared, convert, engine="reference")
    assert type(converted.get_submodule("1")) is QuantizedScale and converted.get_submodule("1").largest > 0
    assert sqnr_db(model(data[0]), converted(data[0])) > 25
    with pytest.raises(ConfigError, match="names no quantized class"):
        fq.convert_fx(prepared)


def test_a_custom_module_in_code_that_does_not_trace_keeps_its_state() -> None:
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    config = PrepareCustomConfig().set_float_to_observed_mapping(Scale, ObservedScale)
    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(Branching(nn.Linear(8, 8), Scale()).eval(), MAPPING, (x,), config)
    prepared(x)
    assert prepared.get_submodule("1").largest > 0
    root = next(left for left in fq.explain(prepared).left if not left.path)
    assert "control flow" in root.reason  # not that a call changes the custom module


def test_a_rule_can_leave_a_custom_module_in_float() -> None:
    model, data = nn.Sequential(nn.Linear(8, 8), Scale()).eval(), [torch.randn(4, 8)]
    config = PrepareCustomConfig().set_float_to_observed_mapping(Scale, ObservedScale)
    mapping = fq.get_default_qconfig_mapping("x86").set_object_type(Scale, None)
    prepared = fq.prepare_fx(model, mapping, (data[0],), config)
    assert type(prepared.get_submodule("1")) is Scale


def test_configs_go_through_their_dict_form() -> None:
    inner = PrepareCustomConfig().set_input_quantized_indexes([0])
    config = (
        PrepareCustomConfig()
        .set_standalone_module_name("middle", MAPPING, (torch.ones(2, 8),), inner, None)
        .set_standalone_module_class(Block)
        .set_non_traceable_module_names(["last"])
        .set_output_quantized_indexes([1])
        .set_preserved_attributes(["classes"])
    )
    again = PrepareCustomConfig.from_dict(config.to_dict())
    assert again.to_dict().keys() == config.to_dict().keys() and len(config.to_dict()) == 5
    assert again.standalone_module_names["middle"].qconfig_mapping is MAPPING
    entry = again.standalone_module_names["middle"].prepare_custom_config
    assert entry is not None and entry.to_dict() == {"input_quantized_idxs": [0]}
    assert fq.ConvertCustomConfig().to_dict() == fq.FuseCustomConfig().to_dict() == {}


def test_the_older_names_work_in_every_call() -> None:
    model, data = net()
    prepare, kept = {"non_traceable_module_name": ["middle"]}, {"preserved_attributes": ["classes"]}
    fq.fuse_fx(model, fuse_custom_config_dict=kept)
    prepared = fq.calibrate(fq.prepare_fx(model, MAPPING, (data[0],), prepare_custom_config_dict=prepare), data)
    fq.convert_to_reference_fx(prepared, convert_custom_config_dict=kept)
    quantized = fq.quantize(model, data, prepare_custom_config_dict=prepare, convert_custom_config_dict=kept)
    assert status(quantized)["middle"] == "float"


class ObservedLinear(nn.Module):
    @classmethod
    def from_float(cls, module: Scale) -> ObservedLinear:
        observed = cls()
        observed.weight, observed.qconfig = module.weight, module.qconfig
        return observed

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class QuantizedLinear(nn.Module):
    """As torch.ao's classes do it: the weight by `qconfig.weight()`, the output by `activation_post_process`."""

    @classmethod
    def from_observed(cls, observed: ObservedLinear) -> QuantizedLinear:
        quantized, watch = cls(), observed.qconfig.weight()
        watch(observed.weight)
        scale, zero = watch.calculate_qparams()
        quantized.weight = torch.quantize_per_channel(
            observed.weight.detach(), scale.double(), zero, watch.ch_axis, watch.dtype
        )
        quantized.scale, quantized.zero = observed.activation_post_process.calculate_qparams()
        return quantized

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.dequantize()
        return torch.quantize_per_tensor(y, float(self.scale), int(self.zero), torch.quint8).dequantize()


class ObservedWithObserver(ObservedLinear):
    """It brings an observer, which prepare is to show the output, as torch.ao's does."""

    @classmethod
    def from_float(cls, module: Scale) -> ObservedLinear:
        observed = super().from_float(module)
        observed.activation_post_process = module.qconfig.activation()
        return observed


class ObservedThatObserves(ObservedWithObserver):
    def forward(self, x: Tensor) -> Tensor:
        return self.activation_post_process(super().forward(x) * 0.5) * 2


@pytest.mark.parametrize("observed", [ObservedWithObserver, ObservedThatObserves])
def test_a_custom_module_with_an_observer_of_its_own(observed: type[ObservedWithObserver]) -> None:
    model, data = nn.Sequential(nn.Linear(8, 8), Scale()).eval(), [torch.randn(4, 8) for _ in range(3)]
    config = PrepareCustomConfig().set_float_to_observed_mapping(Scale, observed)
    prepared = fq.calibrate(fq.prepare_fx(model, MAPPING, (data[0],), config), data)
    seen = prepared.get_submodule("1").activation_post_process.max_val
    expected = max(float(model(x).max()) for x in data) * (0.5 if observed is ObservedThatObserves else 1.0)
    assert float(seen) == pytest.approx(expected)


class HalvedScale(nn.Module):
    """A quantized form that needs no observed one."""

    @classmethod
    def from_observed(cls, module: Scale) -> HalvedScale:
        made = cls()
        made.weight, made.qconfig = module.weight.detach().half(), module.qconfig
        return made

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.float()


@pytest.mark.parametrize("kind", ["dynamic", "weight_only"])
def test_a_leaf_has_a_quantized_form_without_an_observed_one(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    qconfig = {"dynamic": fq.default_dynamic_qconfig, "weight_only": fq.weight_only_qconfig}[kind]
    model, x = nn.Sequential(nn.Linear(8, 8), Scale(), nn.Linear(8, 8), Scale()).eval(), torch.randn(4, 8)
    mapping = fq.QConfigMapping().set_global(qconfig).set_module_name("3", None)
    leaves = {"non_traceable_module_class": [Scale]}
    prepared = fq.prepare_fx(model, mapping, (x,), prepare_custom_config_dict=leaves)
    pairs = {"observed_to_quantized_custom_module_class": {kind: {Scale: HalvedScale, Net: HalvedScale}}}
    converted = fq.convert_fx(prepared, pairs)
    assert [type(converted.get_submodule(path)) for path in "13"] == [HalvedScale, Scale]
    assert converted.get_submodule("1").qconfig == qconfig and type(model[1]) is Scale
    assert status(converted)["1"] == kind and sqnr_db(model(x), converted(x)) > 25
    assert "names Net, and there is no such module" in caplog.text


def test_a_custom_module_named_for_other_quantization_is_told() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Scale()).eval(), torch.randn(4, 8)
    said = r"names Scale under 'dynamic', and the qconfig of '1' asks for 'static'"
    observed = {"float_to_observed_custom_module_class": {"dynamic": {Scale: ObservedScale}}}
    with pytest.raises(ConfigError, match=said):
        fq.prepare_fx(model, MAPPING, (x,), observed)
    prepared = fq.prepare_fx(model, MAPPING, (x,), {"non_traceable_module_class": [Scale]})
    pairs = {"observed_to_quantized_custom_module_class": {"dynamic": {Scale: HalvedScale}}}
    with pytest.raises(ConfigError, match=said):
        fq.convert_fx(fq.calibrate(prepared, [x]), pairs)


def test_a_custom_module_written_for_torch_ao() -> None:
    model, data = nn.Sequential(nn.Linear(8, 8), Scale()).eval(), [torch.randn(4, 8) for _ in range(3)]
    config = PrepareCustomConfig().set_float_to_observed_mapping(Scale, ObservedLinear)
    prepared = copy.deepcopy(fq.prepare_fx(model, MAPPING, (data[0],), config))
    assert prepared.get_submodule("1").qconfig == MAPPING.global_qconfig
    fq.calibrate(prepared, data)
    pairs = fq.ConvertCustomConfig().set_observed_to_quantized_mapping(ObservedLinear, QuantizedLinear)
    converted = fq.convert_fx(prepared, pairs)
    assert sqnr_db(model(data[0]), converted(data[0])) > 25
    assert type(converted.get_submodule("1")) is QuantizedLinear
