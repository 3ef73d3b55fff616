"""`fq.wrap` and `torch.fx.wrap`: bodies that stay as written, with modules inside that are quantized."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import ConfigError
from fxquant.graph.region import Region, regions
from fxquant.numerics.affine import sqnr_db

MAPPING = fq.get_default_qconfig_mapping("x86")


@fq.wrap
def keep_positive(x: Tensor, limit: float = 0.0) -> Tensor:
    return x if float(x.sum()) > limit else -x


def fx_branch(x: Tensor) -> Tensor:
    return x * 2 if float(x.sum()) > 0 else x * 3


torch.fx.wrap("fx_branch")


@fq.wrap()
def keep_negative(x: Tensor) -> Tensor:
    return x if float(x.sum()) < 0 else -x


class WrappedFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(fx_branch(keep_positive(self.first(x), limit=1.0)))


class Base(nn.Module):
    def finish(self, x: Tensor) -> Tensor:
        return x + 1


class Detector(Base):
    """A RetinaNet in small: a backbone, a head on each level, and a wrapped `_post_process`."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1))
        self.refine = nn.Linear(6, 6)
        self.score_threshold = 0.0

    def forward(self, x: Tensor) -> Any:
        features = self.backbone(x)
        levels = [self.head(features), self.head(torch.nn.functional.max_pool2d(features, 2))]
        return self._post_process(levels, image_size=16)

    @fq.wrap
    def _post_process(self, levels: list[Tensor], image_size: int) -> Any:
        flat = torch.cat([level.flatten(2).transpose(1, 2) for level in levels], 1)
        if self.training:
            return {"loss": self.refine(flat).square().mean()}
        scores = self.finish(self.refine(flat)).amax(-1)
        return [
            {"boxes": boxes[keep] * image_size, "scores": score[keep]}
            for boxes, score in zip(flat, scores, strict=True)
            for keep in [score > self.score_threshold]
        ]

    def finish(self, x: Tensor) -> Tensor:
        return super().finish(x)


@fq.wrap
class Router(nn.Module):
    """A wrapped class: which expert runs depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if self.training or float(x.mean()) > -100 else self.right(x)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.router, self.last = nn.Linear(8, 8), Router(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.router(self.inner(x)))


def calls(region: nn.Module, name: str) -> list[Any]:
    assert isinstance(region, Region)
    return [n for n in region.graph.nodes if getattr(n.target, "__name__", "") == name]


def int8_paths(model: nn.Module) -> set[str]:
    return {row.path for row in fq.explain(model) if row.status == "int8"}


def sizes(outputs: list[dict[str, Tensor]]) -> list[int]:
    return [len(o["scores"]) for o in outputs]


def detector() -> tuple[Detector, list[Tensor]]:
    model = Detector().eval()
    return model, [torch.randn(2, 3, 16, 16) for _ in range(4)]


def test_wrapped_functions_are_one_call_and_keep_both_arms() -> None:
    model, x = WrappedFunction().eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, MAPPING, (x,))
    assert len(calls(prepared, "keep_positive")) == 1 and len(calls(prepared, "fx_branch")) == 1
    for sample in (x, -x, 5 * x):
        torch.testing.assert_close(prepared(sample), model(sample))
    fq.calibrate(prepared, [x, -x])
    converted = fq.convert_fx(prepared)
    restored = pickle.loads(pickle.dumps(converted))
    for sample in (x, -x):
        assert sqnr_db(model(sample), converted(sample)) > 25
        assert torch.equal(restored(sample), converted(sample))


def test_a_detector_with_a_wrapped_method_is_quantized_inside_and_out() -> None:
    model, data = detector()
    prepared = fq.prepare_fx(model, MAPPING, (data[0],))
    assert len(calls(prepared, "_post_process")) == 1
    for x in data:
        assert sizes(prepared(x)) == sizes(model(x))
    converted = fq.convert_fx(prepared)
    found = int8_paths(converted)
    assert {"backbone.0", "head.0", "head.2", "refine"} <= found
    for ours, theirs in zip(converted(data[0]), model(data[0]), strict=True):
        assert abs(len(ours["scores"]) - len(theirs["scores"])) <= 4
    model.score_threshold = converted.score_threshold = -100.0
    for ours, theirs in zip(converted(data[0]), model(data[0]), strict=True):
        assert sqnr_db(theirs["boxes"], ours["boxes"]) > 20


def test_the_training_branch_of_a_wrapped_method_survives() -> None:
    model, data = detector()
    prepared = fq.prepare_fx(model, MAPPING, (data[0],))
    fq.calibrate(prepared, data)
    assert isinstance(prepared(data[0]), list)
    converted = fq.convert_fx(prepared, engine="reference")
    for copied in (converted, copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert isinstance(copied.eval()(data[0]), list)
        assert set(copied.train()(data[0])) == {"loss"}
    assert not model.training


def test_a_wrapped_method_sees_the_live_attributes_of_the_copy() -> None:
    model, data = detector()
    prepared = fq.prepare_fx(model, MAPPING, (data[0],))
    other = copy.deepcopy(prepared)
    other.score_threshold = 1e9
    assert sum(sizes(other(data[0]))) == 0 and sum(sizes(prepared(data[0]))) > 0


def test_a_saved_detector_loads() -> None:
    model, data = detector()
    converted = fq.quantize(model, data)
    buffer = io.BytesIO()
    torch.save(converted, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for ours, theirs in zip(loaded(data[0]), converted(data[0]), strict=True):
        assert torch.equal(ours["boxes"], theirs["boxes"])


def test_a_rule_reaches_a_module_inside_a_wrapped_method() -> None:
    model, data = detector()
    mapping = fq.get_default_qconfig_mapping("x86").set_module_name("refine", None)
    rows = {row.path: row for row in fq.explain(fq.prepare_fx(model, mapping, (data[0],)))}
    assert rows["refine"].status == "float" and rows["refine"].rule == "module_name='refine'"
    assert rows["head.0"].status == "int8"


def test_a_wrapped_class_is_a_leaf_whose_modules_are_quantized() -> None:
    model, x = Routed().eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, MAPPING, (x,))
    assert isinstance(prepared, Region)
    assert [n.target for n in prepared.graph.nodes if n.op == "call_module" and "statistics" not in str(n.target)] == [
        "inner",
        "router",
        "last",
    ]
    converted = fq.quantize(model, [torch.randn(16, 8) for _ in range(4)])
    assert {"inner", "router.left.0", "last"} <= int8_paths(converted)
    assert sqnr_db(model(x), converted(x)) > 25
    assert torch.isfinite(converted(x - 1000)).all()  # the arm that no example took


def test_the_arm_of_a_body_that_no_example_took_is_int8_if_data_comes_by() -> None:
    model, x = Routed().eval(), torch.randn(4, 8)
    other = max((x - 10000, x + 10000), key=lambda y: -float(model.inner(y).mean()))
    prepared = fq.calibrate(fq.prepare_fx(model, MAPPING, (x,)), [x, other])
    assert fq.explain(prepared).int8_share == 1.0
    assert {"router.left.0", "router.right"} <= int8_paths(fq.convert_fx(prepared))


def test_a_module_used_inside_and_outside_a_body_is_one_region() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.shared(x))

        @fq.wrap
        def again(self, x: Tensor) -> Tensor:
            return self.shared(x) if float(x.sum()) > 0 else x

    model, x = Twice().eval(), torch.randn(4, 8)
    converted = fq.quantize(model, [torch.randn(16, 8) for _ in range(4)])
    assert [path for path, _ in regions(converted)] == ["", "shared"]
    assert sqnr_db(model(x), converted(x)) > 25


def test_a_wrapped_root_is_one_call() -> None:
    model, x = Router().eval(), torch.randn(4, 8)
    converted = fq.quantize(model, [x])
    assert {"left.0"} <= int8_paths(converted)
    assert sqnr_db(model(x), converted(x)) > 25


def test_a_wrapped_function_that_is_given_a_module() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.heads = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return run_heads(self.heads, self.first(x))

    model, x = Caller().eval(), torch.randn(4, 8)
    converted = fq.quantize(model, [torch.randn(16, 8) for _ in range(4)])
    assert {"first", "heads.0", "heads.1"} <= int8_paths(converted)
    assert sqnr_db(model(x), converted(x)) > 25


@fq.wrap
def run_heads(heads: nn.ModuleList, x: Tensor) -> Tensor:
    return torch.stack([head(x) for head in heads if float(x.abs().sum()) > 0])


def test_wrap_by_dotted_name_reaches_names_imported_elsewhere() -> None:
    library, user = types.ModuleType("wrap_test_library"), types.ModuleType("wrap_test_user")
    sys.modules["wrap_test_library"], sys.modules["wrap_test_user"] = library, user
    exec("def gate(x):\n    return x if float(x.sum()) > 0 else -x", library.__dict__)
    user.gate = library.gate
    try:

        class Gated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def forward(self, x: Tensor) -> Tensor:
                return user.gate(self.fc(x))

        wrapped = fq.wrap("wrap_test_library.gate")
        assert user.gate is wrapped and fq.wrap("wrap_test_library.gate") is wrapped
        model, x = Gated().eval(), torch.randn(4, 8)
        prepared = fq.prepare_fx(model, MAPPING, (x,), method="symbolic")
        assert len(calls(prepared, "gate")) == 1
    finally:
        del sys.modules["wrap_test_library"], sys.modules["wrap_test_user"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torch.nn.functional.rellu", "has no 'rellu'"),
        ("no_such_module.f", "no such module"),
        (3, "expected"),
        (dict, "module classes"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(target: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fq.wrap(target)


def test_quantizing_one_submodule_and_putting_it_back() -> None:
    model, data = detector()
    reference = copy.deepcopy(model)
    features = [reference.backbone(x) for x in data]
    model.head = fq.quantize(model.head, features)
    prepared = fq.prepare_fx(model, MAPPING, (data[0],))
    fq.calibrate(prepared, data)
    converted = fq.convert_fx(prepared)
    assert {"backbone.0", "refine"} <= int8_paths(converted)
    assert {path for path, _ in regions(converted)} == {"", "head", "refine"}
    converted.score_threshold = reference.score_threshold = -100.0
    for ours, theirs in zip(converted(data[0]), reference(data[0]), strict=True):
        assert sqnr_db(theirs["boxes"], ours["boxes"]) > 20


def test_non_traceable_wrap_and_a_quantized_submodule_combine() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.routed, self.plain = Router(), Routed(), nn.Linear(4, 4)
            self.lstm = nn.LSTM(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.plain(self.routed(self.odd(x))))[0]

    model, data = Mixed().eval(), [torch.randn(5, 3, 8) for _ in range(4)]
    config = {"non_traceable_module_name": "odd"}
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), prepare_custom_config_dict=config)
    torch.testing.assert_close(prepared(data[0]), model(data[0]))
    fq.calibrate(prepared, data)
    found = int8_paths(fq.convert_fx(prepared))
    assert {"routed.router.left.0", "plain", "lstm.layers.0.0.ih", "lstm.layers.0.0.step.hh"} <= found
    assert not any(path.startswith("odd") for path in found)


def test_bodies_inside_bodies_keep_their_parts() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.rnn = nn.Linear(8, 8), nn.GRU(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(self.fc(x))[0]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x * 2)

        @fq.wrap
        def body(self, x: Tensor) -> Tensor:
            return self.inner(x) if float(x.abs().sum()) > 0 else x

    model, data = Outer().eval(), [torch.randn(5, 3, 8) for _ in range(4)]
    converted = fq.quantize(model, data)
    assert int8_paths(converted) == {"inner.fc", "inner.rnn.layers.0.0.ih", "inner.rnn.layers.0.0.step.hh"}
    assert sqnr_db(model(data[0]), converted(data[0])) > 25


def test_with_parentheses_it_is_the_same_decorator() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.turn(keep_negative(self.fc(x)))

        @fq.wrap()
        def turn(self, x: Tensor) -> Tensor:
            return x if float(x.mean()) > 0 else x * 2

    x = torch.randn(4, 8)
    quantized = fq.quantize(Model(), [x, -x])
    assert isinstance(quantized, Region)
    for each in (x, -x):
        assert float(quantized(each).sum()) < 0
