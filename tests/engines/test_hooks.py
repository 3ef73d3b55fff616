"""Hooks, and writes to buffers, are seen by a running model as the reference engine sees them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

import fxquant as fq
from fxquant.engines.table import as_engine

CALLS = 4  # by Python, as a run is kept, and from then on


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.gate = nn.SiLU()
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        return self.last(self.gate(self.pool(self.act(self.conv(x))))) * gain


@pytest.fixture(params=["onednn", "onnxruntime", "openvino"])
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, Tensor]:
    """(reference, model on an engine, input)"""
    pytest.importorskip({"onednn": "torch"}.get(request.param, request.param))
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    mapping, model = fq.get_default_qconfig_mapping("x86"), Net().eval()
    made = []
    for engine in ("reference", request.param):
        prepared = fq.prepare_fx(model, mapping, (x,), target=as_engine(request.param).target())
        prepared(x)
        made.append(fq.convert_fx(prepared, engine=engine))
    return made[0], made[1], x


@torch.no_grad()
def agree(reference: nn.Module, model: nn.Module, x: Tensor, **kwargs: Any) -> None:
    expected = reference(x, **kwargs)
    for _ in range(CALLS):
        actual = model(x, **kwargs)
        assert actual.stride() == expected.stride()
        assert torch.allclose(actual, expected, atol=0.05)


def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def halve(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] / 2, *args[1:])


def in_place(module: nn.Module, args: Any, output: Tensor) -> None:
    output.add_(1)


def with_kwargs(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    return output * kwargs.get("gain", 3.0)


HOOKS: dict[str, Callable[[nn.Module], RemovableHandle]] = {
    "forward": lambda m: m.register_forward_hook(double),
    "pre": lambda m: m.register_forward_pre_hook(halve),
    "in place": lambda m: m.register_forward_hook(in_place),
    "kwargs": lambda m: m.register_forward_hook(with_kwargs, with_kwargs=True),
    "always": lambda m: m.register_forward_hook(double, always_call=True),
}


def test_a_hook_acts_until_it_is_removed(pair: Any) -> None:
    reference, model, x = pair
    for path, kind in itertools.product(["", "act", "pool", "gate", "conv"], HOOKS):
        handles = [HOOKS[kind](each.get_submodule(path)) for each in (reference, model)]
        agree(reference, model, x, gain=1.0)
        agree(reference, model, x)
        for handle in handles:
            handle.remove()
        agree(reference, model, x)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_hooks_on_modules_with_weights_are_called(engine: str) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 8, 8), Net().eval()
    quantized, seen, expected = fq.quantize(model, [x], engine=engine), [], []
    with torch.no_grad():
        before = [quantized(x) for _ in range(CALLS)][-1]
        model.last.register_forward_hook(lambda module, args, output: expected.append((args[0], output)))
        model(x)
        handle = quantized.get_submodule("last").register_forward_hook(
            lambda module, args, output: seen.append((args[0], output))
        )
        found = [quantized(x) for _ in range(CALLS)]
        handle.remove()
        after = quantized(x)
    assert len(seen) == CALLS and all(torch.allclose(each, before, atol=0.05) for each in found)
    assert torch.equal(after, before) and len(seen) == CALLS
    for mine, theirs in zip(seen[0], expected[0], strict=True):
        assert mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=0.2)


def test_hooks_see_what_the_float_model_shows(pair: Any) -> None:
    reference, model, x = pair
    seen: dict[int, list[Any]] = {}
    for each in (reference, model):
        for path in ("", "conv", "act", "pool", "gate", "last"):
            each.get_submodule(path).register_forward_hook(
                lambda m, a, o, each=each: seen.setdefault(id(each), []).append((a[0].stride(), o.stride(), o.mean()))
            )
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last)):
            assert torch.allclose(reference(given), model(given), atol=0.05)
    for left, right in zip(seen[id(reference)], seen[id(model)], strict=True):
        assert left[:2] == right[:2] and torch.allclose(left[2], right[2], atol=0.05)


@pytest.fixture
def global_hook() -> Iterator[list[str]]:
    called: list[str] = []
    handle = register_module_forward_hook(lambda module, args, output: called.append(type(module).__name__))
    yield called
    handle.remove()


def test_global_hooks_see_the_same_modules(pair: Any, global_hook: list[str]) -> None:
    reference, model, x = pair
    with torch.no_grad():
        reference(x)
        expected = list(global_hook)
        global_hook.clear()
        model(x)
    assert global_hook == expected != []


def test_copies_take_hooks_along(pair: Any) -> None:
    reference, model, x = pair
    for each in (reference, model):
        each.get_submodule("act").register_forward_hook(double)
    agree(copy.deepcopy(reference), copy.deepcopy(model), x)


def set_data(tensor: Tensor) -> None:
    tensor.data = tensor.flip(0)


WRITES: dict[str, Callable[[nn.Module], Any]] = {
    "scale": lambda m: dict(m.named_parameters())["conv.weight_scale"].mul_(2),
    "bias": lambda m: dict(m.named_buffers())["last.bias"].add_(1),
    "swap": lambda m: setattr(m.get_submodule("last"), "bias", m.get_submodule("last").bias + 1),
    "table": lambda m: m.get_submodule("last")._buffers.update(bias=m.get_submodule("last").bias + 1),
    "data": lambda m: set_data(dict(m.named_buffers())["last.weight"]),
    "load": lambda m: m.load_state_dict({**m.state_dict(), "last.bias": torch.arange(4.0)}),
    "assign": lambda m: m.load_state_dict({**m.state_dict(), "last.bias": torch.arange(4.0) - 2}, assign=True),
    "zero": lambda m: dict(m.named_buffers())["last.weight"].zero_(),
}


def test_writes_are_seen(pair: Any) -> None:
    reference, model, x = pair
    agree(reference, model, x)
    for kind, write in WRITES.items():
        with torch.no_grad():
            before = model(x)
            for each in (reference, model):
                write(each)
            assert not torch.allclose(model(x), before, atol=0.05), kind
        agree(reference, model, x)
    agree(copy.deepcopy(reference), copy.deepcopy(model), x)


def test_functional_call_uses_the_tensors_it_is_given(pair: Any) -> None:
    reference, model, x = pair
    agree(reference, model, x)
    given = {"last.bias": torch.arange(4.0)}
    with torch.no_grad():
        for _ in range(CALLS):
            expected, actual = (torch.func.functional_call(each, given, (x,)) for each in (reference, model))
            assert torch.allclose(actual, expected, atol=0.05)
    agree(reference, model, x)


def test_writes_are_seen_in_inference_tensors(pair: Any) -> None:
    reference, model, x = pair
    with torch.inference_mode():
        reference, model = (copy.deepcopy(each).to(torch.float32) for each in (reference, model))
        for factor in (1, 0, 2):
            for each in (reference, model):
                each.get_submodule("last").bias.mul_(factor).add_(1)
            agree(reference, model, x)
