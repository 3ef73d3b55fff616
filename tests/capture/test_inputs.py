"""Signatures, containers, fixed arguments, and the errors of calls that the graph does not cover."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import InputError, capture
from fxquant.capture.capture import Method
from fxquant.capture.run_untraced import difference
from fxquant.errors import CaptureError, ConfigError

MAPPING = fq.get_default_qconfig_mapping()
both = pytest.mark.parametrize("method", ["symbolic", "export"])


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)


class Optional(Base):
    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0, mode: str = "sum", side: Tensor | None = None
    ) -> Tensor:
        x = self.fc(x) * scale
        if mask is not None:
            x = x * mask
        if side is not None:
            x = x - side
        return x if mode == "sum" else -x


class Star(Base):
    def forward(self, x: Tensor, *others: Tensor, sign: int = 1, **named: Tensor) -> Tensor:
        x = self.fc(x)
        for other in others:
            x = x + other * sign
        for value in named.values():
            x = x * value
        return x


class KeywordOnly(Base):
    def forward(self, x: Tensor, factor: float = 1.0, *, mask: Tensor) -> Tensor:
        return self.fc(x) * mask * factor


class Nested(Base):
    def forward(self, batch: dict[str, Any]) -> Tensor:
        a, (b, c) = batch["a"], batch["rest"]
        return self.fc(a) + b * c if batch["flag"] else a


@dataclass
class Result:
    value: Tensor
    extra: Tensor | None = None


Pair = namedtuple("Pair", ["first", "second"])


class Outputs(Base):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return {
            "tuple": (y, (x, y + 1)),
            "list": [y, x],
            "dict": {"y": y, "nested": {"x": x + 1}},
            "pair": Pair(y, x * 2),
            "none": (y, None),
            "ordered": OrderedDict(y=y),
        }[self.kind]


class ReturnsDataclass(Base):
    def forward(self, x: Tensor) -> Result:
        return Result(value=self.fc(x))


def t() -> Tensor:
    return torch.randn(3, 4)


CALLS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "positional": (Optional, (t(),), {}),
    "mask": (Optional, (t(), t()), {}),
    "mask_by_name": (Optional, (t(),), {"mask": t()}),
    "gap": (Optional, (t(),), {"side": t()}),
    "all_by_name": (Optional, (), {"side": t(), "x": t(), "mode": "neg"}),
    "none": (Optional, (t(), None, 3.0), {}),
    "star": (Star, (t(), t(), t()), {}),
    "star_named": (Star, (t(), t()), {"sign": -1, "extra": t()}),
    "keyword_only": (KeywordOnly, (t(),), {"mask": t()}),
    "nested": (Nested, ({"a": t(), "rest": (t(), t()), "flag": True},), {}),
    **{f"returns_{kind}": (lambda kind=kind: Outputs(kind), (t(),), {}) for kind in ("tuple", "list", "dict", "pair")},
    "returns_none": (lambda: Outputs("none"), (t(),), {}),
    "returns_ordered": (lambda: Outputs("ordered"), (t(),), {}),
}


@pytest.mark.broad
@both
@pytest.mark.parametrize("name", CALLS)
def test_the_call_of_the_example_works(name: str, method: Method) -> None:
    build, args, kwargs = CALLS[name]
    model = build().eval()
    region = capture(model, args, kwargs, method=method)
    for each in (region, copy.deepcopy(region), pickle.loads(pickle.dumps(region))):
        assert difference(each(*args, **kwargs), model(*args, **kwargs)) is None


@both
def test_a_dataclass_comes_back_as_itself(method: Method) -> None:
    if method == "export" and Result not in torch.utils._pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(Result, serialized_type_name="test_inputs.Result")
    model = ReturnsDataclass()
    region = capture(model, (t(),), method=method)
    out = region(x := t())
    assert type(out) is Result
    assert torch.equal(out.value, model(x).value)
    assert out.extra is None


@both
def test_by_position_and_by_name_are_the_same_call(method: Method) -> None:
    model, x, mask = Optional().eval(), t(), t()
    for args, kwargs in (((x, mask), {}), ((x,), {"mask": mask}), ((), {"mask": mask, "x": x})):
        region = capture(model, args, kwargs, method=method)
        for spelled in (
            region(x, mask),
            region(x, mask=mask),
            region(mask=mask, x=x),
            region(x, mask, 2.0, mode="sum"),
        ):
            assert torch.equal(spelled, model(x, mask))


@both
@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((t(), t()), {}, "argument 'mask' was None .* now it is a tensor"),
        ((t(),), {"scale": 3.0}, r"argument 'scale' was 2\.0 .* now it is 3\.0"),
        ((t(),), {"mode": "neg"}, "argument 'mode' was 'sum' .* now it is 'neg'"),
    ],
    ids=["mask", "scale", "mode"],
)
def test_another_value_is_an_error(method: Method, args: Any, kwargs: Any, text: str) -> None:
    region = capture(Optional(), (t(),), method=method)
    region.graph.eliminate_dead_code()
    region.recompile()
    with pytest.raises(InputError, match=text):
        region(*args, **kwargs)


@both
def test_leaving_out_a_tensor_is_an_error(method: Method) -> None:
    region = capture(Optional(), (t(), t()), method=method)
    with pytest.raises(InputError, match="argument 'mask' was a tensor"):
        region(t())
    region = capture(KeywordOnly(), (t(),), {"mask": t()}, method=method)
    with pytest.raises(InputError, match="argument 'mask' was a tensor"):
        region(t())


@both
def test_another_structure_is_an_error(method: Method) -> None:
    region = capture(Nested(), ({"a": t(), "rest": (t(), t()), "flag": True},), method=method)
    for other in (
        {"a": t(), "rest": (t(),), "flag": True},
        {"a": t(), "flag": True},
        {"a": t(), "rest": t(), "flag": 1},
    ):
        with pytest.raises(InputError, match="argument 'batch' has another structure"):
            region(other)
    with pytest.raises(InputError, match=r"flag.* was True"):
        region({"a": t(), "rest": (t(), t()), "flag": False})
    x = {"flag": True, "rest": (t(), t()), "a": t()}  # the order of keys does not matter
    assert region(x).shape == (3, 4)


@both
def test_another_number_of_arguments_is_an_error(method: Method) -> None:
    region = capture(Star(), (t(), t()), method=method)
    for args in ((t(),), (t(), t(), t())):
        with pytest.raises((TypeError, InputError)):
            region(*args)


def test_an_argument_that_no_graph_can_hold() -> None:
    class Thing:
        pass

    class Takes(Base):
        def forward(self, x: Tensor, thing: Any) -> Tensor:
            return self.fc(x)

    with pytest.raises(CaptureError, match="argument 'thing' is a Thing"):
        capture(Takes(), (t(), Thing()), method="symbolic")


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, double: bool = False, times: int = 1) -> Tensor:
        for _ in range(times):
            x = self.fc(x)
        return x * 2 if double else self.other(x)


class SwitchedByData(Switched):
    def forward(self, x: Tensor, double: bool = False, times: int = 1) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x, double, times)


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_concrete_args_are_fixed_and_need_not_be_given(method: Method) -> None:
    model, x = Switched().eval(), torch.randn(3, 4)
    prepared = fq.prepare_fx(model, MAPPING, (x,), concrete_args={"double": True, "times": 2}, method=method)
    assert torch.equal(prepared(x), model(x, True, 2))
    assert torch.equal(prepared(x, double=True), model(x, True, 2))
    with pytest.raises(InputError, match="'double' was True"):
        prepared(x, double=False)


def test_concrete_args_reach_calibration_in_code_that_does_not_trace() -> None:
    model, x = SwitchedByData().eval(), torch.randn(3, 4)
    quantized = fq.quantize(model, [x], concrete_args={"double": True})
    assert {row.path: row.status for row in fq.explain(quantized)} == {"fc": "int8", "other": "float"}
    assert quantized(x, double=True).shape == x.shape


@pytest.mark.parametrize(
    ("concrete", "message"),
    [({"doubel": True}, "Closest: 'double'"), ({"x": 1}, "Give it once"), ({"times": torch.ones(1)}, "is a tensor")],
    ids=["unknown", "given", "tensor"],
)
def test_concrete_args_that_cannot_be(concrete: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fq.prepare_fx(Switched().eval(), MAPPING, (torch.randn(3, 4),), concrete_args=concrete)


@both
def test_a_tensor_that_stands_twice_in_the_example_is_two_inputs(method: Method) -> None:
    model, x, other = Optional(), t(), t()
    region = capture(model, (x, x), method=method)
    assert difference(region(x, other), model(x, other)) is None
