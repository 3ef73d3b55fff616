"""Templates: rules in the grids of a target; of a tuple the first answer wins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant import templates
from fxquant.targets import by_name


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    fq.set_march(None)


def inputs() -> Tensor:
    return torch.randn(2, 3, 16, 16)


def bits_into(model: nn.Module) -> dict[str, int]:
    """The bits of the input of each op."""
    specs = {name: module.spec for name, module in model.named_modules() if hasattr(module, "spec")}
    rows = {row.path: row for row in fq.explain(model) if row.is_weighted and row.status == "int8"}
    return {path: specs[f"quantizers.{row.inputs[0]}"].bits for path, row in rows.items()}


@pytest.mark.parametrize("target", ["bpu", "xint8", "tflite", "x86-vnni"])
def test_the_default_has_the_grids_of_the_target(target: str) -> None:
    x, model = inputs(), Net().eval()
    with_template = fq.quantize(model, [x], qconfig_mapping=templates.calibration, target=target, engine="reference")
    plain = fq.quantize(model, [x], target=target, engine="reference")
    assert torch.equal(with_template(x), plain(x))
    assert not fq.check_target(with_template, target)


def test_the_most_sensitive_ops_get_16_bits() -> None:
    x, model = inputs(), Net().eval()
    table = fq.sensitivity(model, [x], target="bpu")
    worst = next(iter(table)).ops[0]
    rules = (templates.int16(table, top_k=1), templates.calibration)
    prepared = fq.calibrate(fq.prepare_fx(model, rules, (x,), target="bpu"), [x])
    assert bits_into(fq.freeze(prepared)) == {path: 16 if path == worst else 8 for path in ("a", "b", "head")}
    converted = fq.convert_fx(prepared, engine="reference")
    assert not fq.check_target(converted, "bpu")
    every = fq.prepare_fx(model, (templates.int16(table, ratio=1.0), templates.calibration), (x,), target="bpu")
    assert set(bits_into(fq.freeze(fq.calibrate(every, [x]))).values()) == {16}
    rows = [("head", "activation", 12.0), ("a", "activation", 30.0)]
    assert templates.int16(rows, top_k=1).names == {"head"}


def test_the_first_answer_wins_and_callables_may_stand_between() -> None:
    def head_in_float(name: str, kind: str, op: object) -> Any:
        return "float" if name == "head" else None

    rules = (head_in_float, templates.int16([("head",), ("b",)], top_k=2), templates.calibration)
    prepared = fq.prepare_fx(Net().eval(), rules, (inputs(),), target="bpu")
    found = {row.path: row for row in fq.explain(prepared) if row.is_weighted}
    assert found["head"].status == "float" and "s16" in found["b"].reason and "s8 sym per_tensor" in found["a"].reason
    assert [found[path].rule for path in ("head", "b", "a")] == ["setter 0", "setter 1", "setter 2"]


def test_weights_alone_and_outputs_that_are_not_rounded() -> None:
    x, model = inputs(), Net().eval()
    only = fq.quantize(model, example_inputs=(x,), qconfig_mapping=templates.weight_only, target="bpu")
    assert set(fq.explain(only).counts()) == {"weight_only", "float"}
    rules = (templates.high_precision_outputs, templates.calibration)
    prepared = fq.prepare_fx(model, rules, (x,), target="xint8")
    found = {row.path: row for row in fq.explain(prepared) if row.is_weighted}
    assert found["head"].rule == "setter 0" and found["head"].output is None and found["head"].status == "int8"
    assert found["a"].rule == "setter 1"
    refused = fq.forecast(model, "xnnpack", (x,), qconfig_mapping=rules)
    assert {row.path: row.rule for row in refused.refused} == {"head": "integer_outputs"}


def test_fixed_scales_are_those_of_calibration() -> None:
    x, model = inputs(), Net()
    calibrated = fq.freeze(fq.calibrate(fq.prepare_fx(model.eval(), templates.calibration, (x,), target="bpu"), [x]))
    scales = {k: v.clone() for k, v in calibrated.state_dict().items() if k.endswith(".scale")}
    for template, moves in ((templates.qat, True), (templates.qat_fixed_scales, False)):
        trained = fq.prepare_qat_fx(model.train(), template, (x,), target="bpu")
        trained.eval()
        fq.calibrate(trained, [x]).train()
        first = fq.freeze(trained).state_dict()
        for _ in range(5):
            trained(9 * x).sum().backward()
        last = fq.freeze(trained).state_dict()
        same = [torch.equal(first[key], last[key]) for key in scales if key in last and key.startswith("quantizers")]
        assert same and all(same) != moves


@pytest.mark.parametrize(
    ("rules", "call", "error"),
    [
        ((templates.qat, templates.calibration), fq.prepare_fx, "are mixed"),
        (templates.qat, fq.prepare_fx, "'qat' is for training.*prepare_qat_fx"),
        (templates.calibration, fq.prepare_qat_fx, "'calibration' is for calibration"),
        ((templates.int16([("a",)], top_k=1), templates.calibration), fq.prepare_fx, "'xint8' cannot have 16 bits"),
    ],
)
def test_what_does_not_go_together_is_an_error(rules: Any, call: Any, error: str) -> None:
    model = Net().train(call is fq.prepare_qat_fx)
    with pytest.raises(fq.ConfigError, match=error):
        call(model, rules, (inputs(),), target="xint8")


@pytest.mark.parametrize("given", [{}, {"top_k": 1, "ratio": 0.5}, {"ratio": 2}, {"top_k": -1}, {"top_k": True}])
def test_a_count_or_a_share_is_asked_for(given: Any) -> None:
    with pytest.raises(fq.ConfigError, match=r"top_k|ratio"):
        templates.int16([("a",)], **given)
    with pytest.raises(fq.ConfigError, match="no row of a table"):
        templates.int16(["a"], top_k=1)


def test_the_march_is_the_target_of_all_calls() -> None:
    fq.set_march("xint8")
    made = fq.quantize(Net().eval(), [inputs()], engine="reference")
    assert not fq.check_target(made, "xint8") and fq.explain(made).counts()["int8"] > 3
    assert by_name(None).name == "xint8"
    assert fq.get_default_qconfig() == by_name("xint8").qconfig
    assert fq.get_default_qconfig_mapping().global_qconfig == by_name("xint8").qconfig
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping(), (inputs(),))
    assert set(fq.explain(prepared).counts()) == {"int8"}
    assert len(fq.sensitivity(Net().eval(), [inputs()], engine="reference"))


class Shapes(nn.Module):
    """Two convolutions, and ops that are no modules."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        y = torch.cat((y, y * torch.sigmoid(y)), 1)[:, 2:6]
        return self.head(y + 1.5 * self.head(y))


def test_ops_that_are_no_modules_are_found_one_by_one() -> None:
    """A row about one product asked for 16 bits in all ops of the module around it, or in none."""
    x, model = inputs(), Shapes().eval()
    table = fq.sensitivity(model, [x], target="bpu")
    places = {place for row in table for place in row.places}
    assert {"block.0", "head", "mul"} <= places and "" not in places
    rules = (templates.int16([("mul",)], top_k=1), templates.calibration)
    prepared = fq.prepare_fx(model, rules, (x,), target="bpu")
    assert {row.node for row in fq.explain(prepared) if row.rule == "setter 0"} == {"mul"}
    assert templates.int16(table, ratio=1.0).names == places


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        (
            (templates.int16([("blok.0",)], top_k=1), templates.calibration),
            r"setter 0 \(int16\) names 'blok.0'.*Closest: 'block.0'",
        ),
        (
            (templates.calibration, templates.int16([("head",)], top_k=1)),
            r"setter 0 \(calibration\) answers for every op, so setter 1 \(int16\) is never asked",
        ),
        ((templates.weight_only, templates.calibration), r"setter 0 \(weight_only\) answers for every op"),
        ((templates.calibration, fq.QConfigMapping()), "rule 1 of 2 is a QConfigMapping"),
        (((templates.calibration,),), "rule 0 of 1 is a tuple"),
    ],
)
def test_rules_that_would_do_nothing_are_an_error(rules: Any, error: str) -> None:
    with pytest.raises(fq.ConfigError, match=error):
        fq.prepare_fx(Shapes().eval(), rules, (inputs(),), target="bpu")


def test_a_table_that_is_none_is_an_error() -> None:
    with pytest.raises(fq.ConfigError, match="None is no table of sensitivity"):
        templates.int16(None, top_k=1)  # type: ignore[arg-type]
