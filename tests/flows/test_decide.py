"""One calibration serves every target: what is decided at conversion is what preparing for that target gives."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

import fxquant as fq
from fxquant.algorithms import Algorithm
from fxquant.algorithms.efforts import EFFORTS, Effort
from fxquant.config.rules import Rules
from fxquant.engines import choose
from fxquant.engines.table import as_engine
from fxquant.flows.decide import decide
from fxquant.graph.context import Context
from fxquant.graph.region import Region, preparation_of, regions
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op
from fxquant.targets import by_name
from precision_models import collapsing
from zoo import ZOO

TARGETS = {"reference": "x86", "onnxruntime": "onnxruntime", "openvino": "openvino"}  # by engine
MAPPING = fq.get_default_qconfig_mapping()
X = (2, 4, 8, 8)


class Curves(nn.Module):
    """What the targets treat differently: a residual add, silu, tensors that share a grid, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.e, self.q, self.k = nn.Conv2d(8, 4, 1), nn.Linear(8, 8), nn.Linear(8, 8)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x))
        x = self.act(self.b(x) + x)
        x = self.e(torch.cat([self.act(self.c(x)), self.d(x)], 1))
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), x)


def nodes_of(model: nn.Module) -> list[object]:
    """The graphs of a model, in what makes them the same graph."""
    rows: list[object] = []
    for path, region in regions(model):
        rows.append(path)
        for node in region.graph.nodes:
            args = fx.map_arg((node.args, node.kwargs), lambda other: other.name)
            rows.append((node.op, str(node.target), str(args), node.meta.get("note"), node.meta.get("decision")))
    return rows


def reference_for(prepared: nn.Module, engine: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """What `convert_fx(prepared, engine=engine)` hands to the engine."""
    monkeypatch.setattr("fxquant.quantize_fx.apply_engine", lambda model, _: choose.apply_engine(model, "reference"))
    monkeypatch.setattr("fxquant.quantize_fx.check_engine", lambda engine: None)
    return fq.convert_fx(prepared, engine=engine)


def assert_same(one: nn.Module, other: nn.Module, args: tuple, kwargs: dict) -> None:
    assert nodes_of(one) == nodes_of(other)
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items() if isinstance(value, Tensor))
    with torch.no_grad():
        outputs = (pytree.tree_leaves(model(*args, **kwargs)) for model in (one, other))
        for a, b in zip(*outputs, strict=True):
            assert not isinstance(a, Tensor) or torch.equal(a, b)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "effort"),
    [*((name, "fast") for name in (*ZOO, "curves")), ("curves", "balanced"), ("encoder_block", "balanced")],
)
def test_one_calibration_gives_what_preparing_for_each_target_gives(
    name: str, effort: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    entry = ZOO.get(name)
    model = entry.build().eval() if entry is not None else Curves().eval()
    args, kwargs = (entry.inputs(), entry.kwargs()) if entry is not None else ((torch.randn(X),), {})

    def prepare(target: str | None) -> nn.Module:
        algorithms = EFFORTS[effort]
        prepared = fq.prepare_fx(model, MAPPING, args, example_kwargs=kwargs, target=target, algorithms=algorithms)
        with torch.no_grad():
            prepared(*args, **kwargs)
        return prepared

    once = prepare(None)
    for engine, target in TARGETS.items():
        expected = fq.convert_fx(prepare(target), engine="reference")
        assert_same(reference_for(once, engine, monkeypatch), expected, args, kwargs)


def calibrated(model: nn.Module, **asked: object) -> nn.Module:
    x = torch.randn(X, generator=torch.Generator().manual_seed(1))
    return fq.calibrate(fq.prepare_fx(model.eval(), MAPPING, (x,), **asked), [x, x * 2])


def kinds(model: nn.Module) -> set[str]:
    return {row.kind for row in fq.explain(model)}


def test_a_target_that_was_asked_for_is_kept_on_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("x86", "onnxruntime", "npu"):
        prepared = calibrated(Curves(), target=target)
        plain = nodes_of(fq.convert_fx(prepared, engine="reference"))
        for engine in TARGETS:
            assert nodes_of(reference_for(prepared, engine, monkeypatch)) == plain
            monkeypatch.undo()


def test_explain_shows_the_target_that_was_asked_for_or_else_that_of_onednn() -> None:
    assert "silu" in kinds(calibrated(Curves()))
    assert "silu" not in kinds(calibrated(Curves(), target="onnxruntime"))


def test_calibration_sees_the_float_values() -> None:
    model, x = Curves().eval(), torch.randn(X)
    prepared = fq.prepare_fx(model, MAPPING, (x,))
    assert torch.equal(prepared(x), model(x))
    seen = prepared.get_submodule("statistics.a_histogram")
    assert isinstance(seen, FakeQuant) and seen.observer is not None
    assert torch.equal(seen.observer.high, model.a(x).max())


def test_what_targets_want_of_one_tensor_is_kept_once() -> None:
    names = [name for name, _ in calibrated(Curves()).get_submodule("statistics").named_children()]
    only = [name for name, _ in calibrated(Curves(), target="x86").get_submodule("statistics").named_children()]
    assert len(names) == len(set(names))
    assert set(only) < set(names)


def test_copies_pickles_and_state_dicts_carry_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Curves()
    prepared, x = calibrated(model), torch.randn(X)
    file = io.BytesIO()
    torch.save(prepared, file)
    file.seek(0)
    loaded = fq.prepare_fx(model, MAPPING, (x,))
    loaded.load_state_dict(prepared.state_dict())
    narrow = fq.prepare_fx(model, MAPPING, (x,), target="onnxruntime")
    narrow.load_state_dict(prepared.state_dict())  # what this target has no need for is left out
    expected = reference_for(prepared, "onnxruntime", monkeypatch)
    others = (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)), torch.load(file, weights_only=False))
    for other in (*others, loaded, narrow):
        assert_same(reference_for(other, "onnxruntime", monkeypatch), expected, (x,), {})


def test_rules_are_decided_again_from_the_same_statistics() -> None:
    prepared = calibrated(Curves())
    rules = Rules(
        fq.QConfigMapping().set_global(MAPPING.global_qconfig).set_module_name("b", None), lambda a, b: a is b
    )
    again = decide(prepared, rules=rules)
    assert {row.path: row.status for row in fq.explain(again)}["b"] == "float"
    assert {row.path: row.status for row in fq.explain(prepared)}["b"] == "int8"
    npu = by_name("npu")
    signed = fq.QConfig(activation=dataclasses.replace(npu.activation, observer="percentile"), weight=npu.weight)
    other = decide(prepared, rules=Rules({"": signed}, lambda a, b: same_op(OPS, a, b)), target=npu)
    used = [module for module in other.modules() if isinstance(module, FakeQuant)]
    assert used and all(quantizer.has_range or quantizer.spec.observer == "fixed" for quantizer in used)
    assert torch.isfinite(fq.convert_fx(other, engine="reference")(torch.randn(X))).all()


def test_a_tensor_that_was_not_watched_is_named() -> None:
    bare = fq.QConfigMapping().set_module_name("d", MAPPING.global_qconfig)
    x = torch.randn(X)
    prepared = fq.calibrate(fq.prepare_fx(Curves().eval(), bare, (x,)), [x])
    with pytest.raises(fq.StageError, match="of the tensors x were watched"):
        decide(prepared, rules=Rules(MAPPING, lambda a, b: a is b))


def test_a_rule_about_an_op_that_a_target_splits_holds_for_its_parts() -> None:
    mapping = fq.QConfigMapping().set_global(MAPPING.global_qconfig).set_object_type(nn.SiLU, None)
    prepared = fq.prepare_fx(Curves().eval(), mapping, (torch.randn(X),), target="onnxruntime")
    assert {row.status for row in fq.explain(prepared) if row.kind == "silu"} == {"float"}


class Widest(nn.Module):
    dtype, qscheme, quant_min, quant_max = torch.quint8, torch.per_tensor_affine, 0, 255

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.most = torch.maximum(self.most, x.detach().abs().max())
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return self.most / 127, torch.tensor(128)


def test_two_observers_of_the_users_own_for_one_tensor_are_refused() -> None:
    class Other(Widest):
        pass

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)

    one, other = (
        fq.QConfig(
            activation=fq.Spec(signed=False, symmetric=False, observer="custom", factory=factory), weight=fq.Spec()
        )
        for factory in (Widest, Other)
    )
    mapping = fq.QConfigMapping().set_module_name("a", one).set_module_name("b", other)
    with pytest.raises(fq.ConfigError, match="two observers of your own are to watch x"):
        fq.prepare_fx(Fork().eval(), mapping, (torch.randn(X),))


def test_a_users_own_observer_sees_all_the_tensors_of_its_quantizer() -> None:
    class Cat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
            self.c = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.cat([self.a(x), self.b(x)], 1))

    own = fq.Spec(signed=False, symmetric=False, observer="custom", factory=Widest)
    qconfig = fq.QConfig(activation=own, weight=fq.Spec())
    model, x = Cat().eval(), torch.randn(X)
    prepared = fq.calibrate(fq.prepare_fx(model, {"": qconfig}, (x,)), [x])
    found = {q.name: q for q in decide(prepared).modules() if isinstance(q, FakeQuant)}
    shared = found[next(row.output for row in fq.explain(prepared) if row.kind == "cat")]
    most = torch.maximum(model.a(x).abs().max(), model.b(x).abs().max())
    assert torch.allclose(shared.compute_qparams()[0], most / 127)


def test_auto_goes_through_the_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    three = tuple(as_engine(name) for name in ("onednn", "onnxruntime", "openvino"))
    monkeypatch.setattr("fxquant.convert_model.available_engines", lambda: three)
    asked: list[set[str]] = []

    def on_engines(model: nn.Module, engines: list[fq.Engine]) -> dict[str, nn.Module]:
        asked.append({engine.name for engine in engines})
        return dict.fromkeys((engine.name for engine in engines), model)

    monkeypatch.setattr("fxquant.convert_model.on_engines", on_engines)
    monkeypatch.setattr("fxquant.api.fastest", lambda found, call: found["onnxruntime"])
    drawn = []

    def data() -> Iterator[Tensor]:
        for _ in range(3):
            drawn.append(torch.randn(X))
            yield drawn[-1]

    found = fq.quantize(Curves().eval(), data(), engine="auto")
    assert len(drawn) == 3
    assert asked == [{"onednn"}, {"onnxruntime"}, {"openvino"}]
    assert "silu" not in kinds(found)


def test_a_trained_model_keeps_its_grid_on_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    qat = fq.prepare_qat_fx(Curves().train(), fq.get_default_qat_qconfig_mapping(), (torch.randn(X),))
    qat(torch.randn(X)).sum().backward()
    plain = nodes_of(fq.convert_fx(qat, engine="reference"))
    assert nodes_of(reference_for(qat, "onnxruntime", monkeypatch)) == plain


def test_a_target_of_the_users_own_is_decided_as_well() -> None:
    plain = dataclasses.replace(by_name("x86"), name="plain", residual=frozenset())
    rows = {row.node: row for row in fq.explain(decide(calibrated(Curves()), target=plain))}
    assert rows["add"].group == "add"


def test_algorithms_rewrite_the_calibrated_graph_once_however_often_it_is_decided() -> None:
    model, data = collapsing()
    seen: list[bool] = []

    class Counting(Algorithm):
        def adapt(self, region: Region, context: Context) -> None:
            seen.append(bool(preparation_of(region).statistics_path))

    with pytest.warns(UserWarning, match="Lifted"):
        fq.quantize(model, data, algorithms=(Counting(),), engine="reference")
    assert seen.count(True) == 1
