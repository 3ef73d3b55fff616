"""Models that are graphs already: GraphModules, exported programs, compiled and scripted modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import CaptureError, InputError
from fxquant.graph import torch_compat
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

MAPPING = fq.get_default_qconfig_mapping("x86")
BATCH = torch.export.Dim("batch", min=2, max=64)


def exported(model: nn.Module, x: Tensor) -> nn.Module:
    return torch.export.export(model, (x,)).module()


def dynamic(model: nn.Module, x: Tensor) -> nn.Module:
    return torch.export.export(model, (x,), dynamic_shapes=({0: BATCH},)).module()


FORMS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "graph_module": lambda model, x: torch.fx.symbolic_trace(model),
    "exported": exported,
    "dynamic": dynamic,
    "compiled": lambda model, x: torch.compile(model, backend="eager"),
}


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.inner(x)))


class Untraceable(Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return self.head(y) if y.sum() > -1e6 else y


def build(name: str, form: str, around: Any = None) -> tuple[nn.Module, Tensor]:
    model, x = ZOO[name].build(), ZOO[name].inputs()[0]
    made = FORMS[form](model, x)
    model = made if around is None else around(made)
    return (model.eval() if form in ("graph_module", "compiled") else model), x  # an exported program refuses


def weighted(model: nn.Module) -> list[str]:
    return [row.path for row in fq.explain(model) if row.is_weighted]


@pytest.mark.broad
@pytest.mark.parametrize("around", [None, Around, Untraceable], ids=["alone", "inside", "in_pieces"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["resnet", "vision_transformer"])
def test_graphs_are_quantized_under_their_paths(name: str, form: str, around: Any) -> None:
    model, x = build(name, form, around)
    plain = fq.prepare_fx(ZOO[name].build(), MAPPING, (x,))
    quantized = fq.quantize(model, [x])
    with torch.no_grad():
        assert sqnr_db(model(x), quantized(x)) > 25
    assert fq.explain(quantized).int8_share == 1.0
    prefix, own = ("inner.", ["head"]) if around else ("", [])
    assert sorted(weighted(quantized)) == sorted([*(prefix + path for path in weighted(plain)), *own])
    if form in ("dynamic", "graph_module"):
        assert len(quantized(torch.cat([x, x]))) == 4


def test_sizes_that_an_export_fixed_are_checked() -> None:
    model, x = build("vision_transformer", "exported")
    quantized = fq.quantize(model, [x])
    with pytest.raises(InputError, match="does not hold for inputs of size"):
        quantized(torch.cat([x, x]))


@pytest.mark.parametrize("form", FORMS)
def test_rules_fuse_and_training(form: str) -> None:
    model, x = build("resnet", form)
    rules = fq.get_default_qconfig_mapping("x86").set_module_name("layer1", None)
    decided = {row.path: row.status for row in fq.explain(fq.prepare_fx(model, rules, (x,))) if row.is_weighted}
    assert decided["layer1.conv1"] == decided["layer1.conv2"] == "float"
    assert decided["layer2.conv1"] == "int8"
    fused = fq.fuse_fx(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)
    if form in ("graph_module", "compiled"):
        model.train()
    trained = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
    trained(x).sum().backward()
    assert fq.convert_fx(trained.eval())(x).shape == (2, 10)
    assert trained.train().training


def test_a_script_module_is_refused_or_left_as_one_call() -> None:
    model, x = ZOO["plain"].build(), ZOO["plain"].inputs()[0]
    scripted = torch.jit.trace(model, x)
    with pytest.raises(CaptureError, match=r"Give the nn\.Module that it was made of"):
        fq.prepare_fx(scripted, MAPPING, (x,))
    around = Around(scripted).eval()
    quantized = fq.quantize(around, [x])
    assert sqnr_db(around(x), quantized(x)) > 25
    assert weighted(quantized) == ["head"]


def test_the_weights_of_a_script_module_count() -> None:
    x = torch.randn(2, 8)
    inner = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval())
    model = nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 4)).eval()
    account = fq.explain(fq.quantize(model, [x]))
    assert account.weighted() == (2, 4)
    assert [(left.path, left.hint) for left in account.left] == [("1", "use the module that it was made of")]


def test_an_exported_program_itself_is_refused() -> None:
    model, x = ZOO["plain"].build(), ZOO["plain"].inputs()[0]
    with pytest.raises(CaptureError, match=r"Call \.module\(\)"):
        fq.prepare_fx(torch.export.export(model, (x,)), MAPPING, (x,))


class Rows(nn.Module):
    """Row by row, or not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.fc = kind, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y - y.mean(0) if self.kind == "mixed" else y.view(2, 4) if self.kind == "viewed" else y


@pytest.mark.parametrize("kind", ["plain", "mixed", "viewed"])
def test_a_batch_size_that_the_graph_does_not_use_is_open(kind: str) -> None:
    x = torch.randn(2, 6)
    quantized = fq.quantize(torch.export.export(Rows(kind).eval(), (x,)).module(), [x])
    if kind == "plain":
        assert quantized(torch.randn(5, 6)).shape == (5, 4)
    else:
        with pytest.raises(fq.FxQuantError, match=r"size\(0\) == 2"):
            quantized(torch.randn(5, 6))


def test_checks_of_exported_programs_are_known_by_their_class() -> None:
    """A class of the user's with the same name computes something."""
    user_class = type("GuardsFn", (nn.ReLU,), {})
    assert not torch_compat.is_guards(user_class())
    made = dynamic(nn.Linear(10, 10), torch.randn(4, 10))
    assert [torch_compat.is_guards(part) for part in made.modules()] == [False, True]
