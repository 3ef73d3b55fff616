"""Every rule of a target, broken on purpose in a converted model, is caught, by its own name."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.graph.encode import encode_graph
from fxquant.graph.lowering import reference_graph
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.grid import Grid
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.targets import by_name


class Shifts(nn.Module):
    """An op for each rule between positions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.d, self.fc, self.leaky = nn.Conv2d(8, 4, 1), nn.Linear(4, 3), nn.LeakyReLU(0.125)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        y = self.leaky(self.b(x))
        s = x + y
        t = self.c(s)
        m = s * t
        g = t * F.hardsigmoid(t)
        z = self.d(torch.cat((m, g), 1))
        z = F.max_pool2d(z, 2)
        return self.fc(F.adaptive_avg_pool2d(z - z.flip(3), 1).flatten(1))


@pytest.fixture(scope="module")
def made() -> nn.Module:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    model = fq.quantize(Shifts().eval(), [x], target="xint8", engine="reference")
    assert fq.check_target(model, "xint8") == ()
    return model


def tensor_of(model: nn.Module, kind: str, operand: int | None = None) -> str:
    """The quantizer of the output of the first op of a kind, or of one of its operands."""
    row = next(row for row in fq.explain(model) if row.kind == kind)
    name = row.output if operand is None else row.inputs[operand]
    assert name is not None
    return f"quantizers.{name}"


def shift(model: nn.Module, path: str, places: int) -> None:
    """Move the position of a tensor: 2^-p to 2^-(p + places)."""
    grid = model.get_submodule(path)
    assert isinstance(grid, Grid)
    grid.scale.mul_(2.0**-places)


def move(kind: str, places: int, operand: int | None = None) -> Callable[[nn.Module], None]:
    return lambda model: shift(model, tensor_of(model, kind, operand), places)


def stored(path: str, name: str, change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        holder = model.get_submodule(path)
        assert isinstance(holder, QuantizedWeight)
        holder._buffers[name] = change(getattr(holder, name) if name != "bias" else holder._buffers["bias"])

    return apply


def of_grid(kind: str, **fields: Any) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        grid = model.get_submodule(tensor_of(model, kind))
        for name, value in fields.items():
            setattr(grid, name, value)

    return apply


BROKEN: dict[str, tuple[Callable[[nn.Module], None], str, str]] = {
    "shift_cut too large": (stored("a", "weight_scale", lambda s: s * 2.0**-30), "positions", "w + i - o in [0, 16]"),
    "shift_cut below 0": (stored("c", "weight_scale", lambda s: s * 2.0**30), "positions", "w + i - o in [0, 16]"),
    "shift_bias too large": (stored("a", "bias_scale", lambda s: s * 2.0**20), "positions", "w + i - b <= 15"),
    "shift_bias too small": (stored("a", "bias_scale", lambda s: s * 2.0**-30), "positions", "o - b >= -16"),
    "shift_bias before a leaky relu": (
        *(stored("b", "bias_scale", lambda s: s * 2.0**-12), "positions", "w + i - b >= 0"),
    ),
    "inputs of an add apart": (move("add", 9, operand=1), "positions", "max(i) - min(i) <= 7"),
    "output of an add": (move("add", 40), "positions", "min(i) - o in [-7, 25]"),
    "output of a product": (move("mul", 40), "positions", "sum(i) - o in [0, 32]"),
    "the product of a swish": (move("hardsigmoid", 12), "positions", "sum(i) - o <= 15"),
    "input of a hard-sigmoid": (move("hardsigmoid", 20, operand=0), "positions", "i in [0, 15]"),
    "output of a hard-sigmoid": (move("hardsigmoid", -3), "positions", "o >= 7"),
    "hard-sigmoid's shift": (move("hardsigmoid", 40), "positions", "i - o in [-14, 17]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_between_positions_is_caught(name: str, made: nn.Module) -> None:
    change, rule, text = BROKEN[name]
    broken = copy.deepcopy(made)
    change(broken)
    found = fq.check_target(broken, "xint8")
    assert any(each.rule == rule and text in each.found for each in found), [str(each) for each in found]


@pytest.mark.parametrize("kind", ["cat", "max_pool", "adaptive_avg_pool"])
def test_scales_that_differ_around_cats_and_pools_are_caught(kind: str, made: nn.Module) -> None:
    broken = copy.deepcopy(made)
    assert isinstance(broken, Region)
    row = next(row for row in fq.explain(broken) if row.kind == kind)
    grid = copy.deepcopy(broken.get_submodule(f"quantizers.{row.inputs[0]}"))
    assert isinstance(grid, Grid)
    grid.scale.mul_(2)
    broken.get_submodule("quantizers").add_module("other", grid)
    graph = reference_graph(broken)
    (node,) = (node for node in graph.nodes if node.name == row.node)
    call = next(iter(node.users))
    with graph.inserting_before(call):
        numbers = [graph.get_attr(f"quantizers.other.{name}") for name in ("scale", "zero_point")]
    call.args = (call.args[0], *numbers, *call.args[3:])
    lowering_of(broken).reference = encode_graph(graph)
    found = fq.check_target(broken, "xint8")
    assert any(each.rule == "share" and each.kind == kind for each in found), [str(each) for each in found]


@pytest.mark.parametrize(
    ("target", "change", "rule", "text"),
    [
        ("xint8", of_grid("add", zero_point=torch.tensor(3, dtype=torch.int32)), "activations", "a zero point"),
        ("xint8", of_grid("add", scale=torch.tensor(0.013)), "activations", "float scales, not pow2"),
        ("xint8", stored("a", "weight_scale", lambda s: s * 1.3), "weights", "float scales, not pow2"),
    ],
    ids=["zero point", "scale", "weight's scale"],
)
def test_grids_that_the_target_has_not_are_caught(
    target: str, change: Callable[[nn.Module], None], rule: str, text: str, made: nn.Module
) -> None:
    broken = copy.deepcopy(made)
    change(broken)
    found = fq.check_target(broken, target)
    assert any(each.rule == rule and text in each.found for each in found), [str(each) for each in found]


@pytest.mark.parametrize("form", ["int16", "int32", "float"])
def test_forms_of_biases(form: str) -> None:
    given = {"int16": fq.Spec(bits=16, scale="pow2", observer="minmax"), "int32": "int32", "float": None}[form]
    loose = dataclasses.replace(by_name("xint8"), bias=given, biases=())
    x = torch.randn(2, 3, 8, 8)
    made = fq.quantize(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).eval(), [x], target=loose, engine="reference"
    )
    strict = dataclasses.replace(by_name("xint8"), biases=("int8",))
    assert {each.rule for each in fq.check_target(made, strict)} == {"biases"}
    allowed = {each.rule for each in fq.check_target(made, "xint8")}
    assert allowed == ({"biases"} if form == "float" else set())


def test_wide_ranges_of_weights_are_caught() -> None:
    x = torch.randn(2, 3, 8, 8)
    wide = fq.quantize(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), [x], target="x86-vnni", engine="reference")
    for target in ("tensorrt", "tflite", "xnnpack", "generic"):
        found = [each for each in fq.check_target(wide, target) if each.rule == "weights"]
        assert found and "[-128, 127], not inside of [-127, 127]" in found[0].found
