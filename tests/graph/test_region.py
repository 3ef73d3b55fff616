"""What a region knows: where it comes from, what was decided, how it runs; and that the user's names stay theirs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.late_code import make_code, outdate
from fxquant.graph.lowering import reference_graph, unlower
from fxquant.graph.region import (
    Region,
    engine_of,
    kernel_path_of,
    lowering_of,
    origin_of,
    preparation_of,
    runner_of,
    stage_of,
)
from fxquant.graph.region_parts import Stage

MAPPING = fq.get_default_qconfig_mapping("x86")


class OwnNames(nn.Module):
    """Its parts go by the names that one would give to the parts of a region."""

    def __init__(self) -> None:
        super().__init__()
        self.origin = nn.Conv2d(3, 4, 1)
        self.plan = nn.Conv2d(4, 4, 1)
        self.lowering = nn.BatchNorm2d(4)
        self.stage = nn.ReLU()
        self.op = nn.Conv2d(4, 4, 1)
        self.module = nn.Flatten()
        self.quantizer = nn.Linear(16, 2)
        self.path = "mine"

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage(self.lowering(self.plan(self.origin(x))))
        return self.quantizer(self.module(self.op(x)))  # type: ignore[no-any-return]


def prepared() -> Region:
    torch.manual_seed(0)
    made = fq.prepare_fx(OwnNames().eval(), MAPPING, (torch.rand(2, 3, 2, 2),), target="x86-vnni")
    made(torch.rand(2, 3, 2, 2))
    assert isinstance(made, Region)
    return made


def converted(engine: Literal["onednn", "reference"] = "onednn") -> Region:
    made = fq.convert_fx(prepared(), engine=engine)
    assert isinstance(made, Region)
    return made


def test_the_parts_of_a_model_may_go_by_any_name(tmp_path: Path) -> None:
    model, x = converted(), torch.rand(2, 3, 2, 2)
    assert isinstance(model.stage, nn.ReLU)
    assert model.path == "mine"
    fq.save(model, tmp_path / "model.fq")
    assert torch.equal(fq.load(tmp_path / "model.fq", engine="onednn")(x), model(x))


def test_the_stage_follows_from_what_a_region_knows() -> None:
    fused = fq.fuse_fx(OwnNames().eval())
    assert isinstance(fused, Region)
    assert stage_of(fused) is Stage.FUSED
    ready = prepared()
    assert stage_of(ready) is Stage.PREPARED
    frozen = fq.freeze(ready)
    assert isinstance(frozen, Region)
    assert stage_of(frozen) is Stage.PREPARED
    assert stage_of(converted()) is Stage.CONVERTED


def test_where_a_region_comes_from_is_fixed() -> None:
    origin = origin_of(converted())
    assert origin.user_class is OwnNames
    assert (origin.method, origin.num_inputs, origin.input_names) == ("symbolic", 1, ("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        origin.path = "elsewhere"  # type: ignore[misc]


def test_an_engine_leaves_nothing_behind() -> None:
    model, x = converted(), torch.rand(2, 3, 2, 2)
    kernels = kernel_path_of(model)
    assert kernels and isinstance(model.get_submodule(kernels), nn.Module)
    unlower(model)
    assert (kernel_path_of(model), runner_of(model)) == ("", None)
    assert not hasattr(model, kernels)
    assert torch.equal(model(x), converted("reference")(x))


def test_a_copy_has_parts_of_its_own() -> None:
    model = converted()
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        unlower(other)
        preparation_of(other).statistics_path = "elsewhere"
        assert (engine_of(model), preparation_of(model).statistics_path) == ("onednn", "")
        assert kernel_path_of(model) and lowering_of(model).filled is not lowering_of(other).filled


class Guarded(nn.Module):
    """A graph module inside Python code."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.last = inside, nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inside(x)
        return self.last(y) if float(y.sum()) < 1e9 else y


def graph_module(how: str) -> nn.Module:
    torch.manual_seed(0)
    model, x = OwnNames().eval(), torch.rand(2, 3, 2, 2)
    made = torch.export.export(model, (x,)).module() if "exported" in how else torch.fx.symbolic_trace(model)
    return Guarded(made) if "inside" in how else made


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("stage", ["prepared", "trained", "frozen", "converted", "reference"])
@pytest.mark.parametrize("how", ["traced", "exported", "traced inside", "exported inside"])
def test_models_from_graph_modules_are_pickled(how: str, stage: str) -> None:
    """fx gives each graph module a class of its own, and torch.export a module of checks; no pickle takes them."""
    model, x = graph_module(how), torch.rand(2, 3, 2, 2)
    for module in model.modules():
        module.training = stage == "trained"  # programs refuse train()
    if stage == "trained":
        made = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
    else:
        made = fq.prepare_fx(model, MAPPING, (x,))
    made(x)
    made.eval()
    if stage == "frozen":
        made = fq.freeze(made)
    elif stage in ("converted", "reference"):
        made = fq.convert_fx(made, engine="reference" if stage == "reference" else "onednn")
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(made))(x), made(x))


def test_a_region_that_is_not_converted_has_its_graph_and_no_lowering() -> None:
    region = prepared()
    assert reference_graph(region) is region.graph
    with pytest.raises(fq.StageError, match="not converted"):
        lowering_of(region)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
@pytest.mark.parametrize("inside", [True, False])
def test_symbolic_trace_gives_the_qdq_graph(engine: Literal["reference", "onednn", "native"], inside: bool) -> None:
    if engine == "native":
        pytest.importorskip("llvmlite")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], engine=engine)
    around = nn.Sequential(quantized, nn.ReLU()) if inside else quantized
    traced = torch.fx.symbolic_trace(around)
    assert any("quantize_per_tensor" in str(node.target) for node in traced.graph.nodes)
    torch.testing.assert_close(traced(x), around(x), atol=0.05, rtol=0.0)
    torch.testing.assert_close(traced(x[:1]), around(x[:1]), atol=0.05, rtol=0.0)


class Chooses(nn.Module):
    """Looks methods up on its class, by name, as transformers' `generate` does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)

    def decode(self, x: Tensor, how: str) -> Tensor:
        made: Tensor = getattr(type(self), f"_{how}")(self, x)
        return made

    def _greedy(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)


def test_methods_are_found_on_the_class_of_a_region() -> None:
    model, x = Chooses().eval(), torch.randn(3, 4)
    quantized = fq.quantize(model, [x], engine="reference")
    assert torch.equal(quantized.decode(x, "greedy"), quantized(x).argmax(-1))
    assert torch.equal(copy.deepcopy(quantized).decode(x, "greedy"), quantized(x).argmax(-1))


def test_plain_attributes_are_found_on_the_class_of_a_region() -> None:
    class Tagged(Chooses):
        kind, keys = "tagged", ("a", "b")

    quantized = fq.quantize(Tagged().eval(), [torch.randn(3, 4)], engine="reference")
    for each in (quantized, copy.deepcopy(quantized)):
        assert type(each).kind == each.kind == "tagged"
        assert type(each).keys == ("a", "b")
    quantized.kind = "other"
    assert (type(quantized).kind, quantized.kind) == ("tagged", "other")


def test_code_is_made_of_the_graph_as_it_is_when_somebody_asks() -> None:
    x = torch.rand(2, 3, 2, 2)
    ways: dict[str, Callable[[Region], object]] = {
        "call": lambda region: region(x),
        "code": lambda region: region.code,
        "forward": lambda region: region.forward,
        "class": lambda region: type(region).forward,
        "signature": lambda region: inspect.signature(region.forward),
        "trace": torch.fx.symbolic_trace,
        "make": make_code,
    }
    for way, ask in ways.items():
        region = prepared()
        old = region.code
        head = next(node for node in region.graph.nodes if node.target == "quantizer")
        with region.graph.inserting_after(head):
            twice = region.graph.call_function(torch.mul, (head, 2.0))
        head.replace_all_uses_with(twice, delete_user_cb=lambda user, twice=twice: user is not twice)
        expected = 2 * region(x)  # by the code of before
        outdate(region)
        copies = [copy.copy(region), copy.deepcopy(region), pickle.loads(pickle.dumps(region))]
        ask(region)
        for made in (region, *copies):
            assert torch.equal(made(x), expected), way
            assert made.code != old and "torch.mul" in made.code
            assert list(inspect.signature(made.forward).parameters) == ["x"]


def test_a_copy_makes_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    region = prepared()
    outdate(region)
    monkeypatch.setattr(Region, "recompile", lambda region: pytest.fail("code was made"))
    copy.copy(region)
    copy.deepcopy(region)
