"""Inputs of 8 bits on CPUs that sum pairs of products in saturating int16: every engine is as right as on others."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.onednn import compiled, kernel_modules
from fxquant.engines.onednn.pairs import halves, may_overflow, overflows, twice
from fxquant.engines.onednn.support import supports
from fxquant.numerics.affine import sqnr_db
from fxquant.targets.x86 import x86

WEIGHT = fq.Spec(granularity="per_channel", observer="minmax", limits=(-127, 127))
ACTIVATIONS = {
    "u8": fq.Spec(signed=False, symmetric=False, observer="minmax"),
    "s8": fq.Spec(observer="minmax"),
    "dynamic": fq.Spec(signed=False, symmetric=False, dynamic=True, observer="minmax"),
    "dynamic 7 bits": fq.Spec(bits=7, signed=False, symmetric=False, dynamic=True, observer="minmax"),
}
RUNTIMES = ("onnxruntime", "openvino")
OPS = {
    "linear": (lambda: nn.Linear(64, 16), (4, 64)),
    "conv1d": (lambda: nn.Conv1d(16, 16, 3), (2, 16, 7)),
    "conv2d": (lambda: nn.Conv2d(16, 16, 3, padding=1), (2, 16, 6, 6)),
    "groups": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=2), (2, 16, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (2, 16, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 16, 4, 2, 1), (2, 16, 6, 6)),
}


def worst(op: str) -> tuple[nn.Module, Tensor]:
    """A model whose products are as large as they get, and its input."""
    torch.manual_seed(0)
    make, shape = OPS[op]
    first = make()
    second = nn.Linear(16, 8) if op == "linear" else nn.Conv1d(16, 8, 1) if op == "conv1d" else nn.Conv2d(16, 8, 1)
    for module in (first, second):
        signs = torch.where(torch.rand_like(module.weight) < 0.9, 1.0, -1.0)
        module.weight.data = signs * (0.9 + 0.1 * torch.rand_like(module.weight))
    return nn.Sequential(first, nn.ReLU(), second).eval(), 0.9 + 0.1 * torch.rand(shape)


def convert(model: nn.Module, x: Tensor, spec: fq.Spec, engine: str, weight: fq.Spec = WEIGHT) -> nn.Module:
    mapping = fq.QConfigMapping().set_global(fq.QConfig(activation=spec, weight=weight))
    prepared = fq.prepare_fx(copy.deepcopy(model), mapping, (x,))
    fq.calibrate(prepared, [x])
    return fq.convert_fx(prepared, engine=engine)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU without VNNI, for what torch's kernels do."""
    for module in (kernel_modules, compiled):
        monkeypatch.setattr(module, "overflows", lambda: True)


def test_halves_fit_whatever_the_bytes() -> None:
    x = torch.tensor([[255, 255, 0, 255]], dtype=torch.uint8)
    weight = torch.tensor([[127, 127, 127, -128], [-128, -128, -127, -127], [-1, 1, 0, 127]], dtype=torch.int8)
    products = twice(x, -1).int().unsqueeze(1) * halves(weight).int()
    saturated = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1).sum(-1)
    assert torch.equal(saturated, x.int() @ weight.int().t())


def test_seven_bits_of_either_need_no_halves() -> None:
    assert may_overflow(255, 127) and may_overflow(191, 127)
    assert not may_overflow(127, 128) and not may_overflow(255, 64)


@pytest.mark.broad
@pytest.mark.parametrize(("activation", "engine"), [*((name, "onednn") for name in ACTIVATIONS), ("u8", "native")])
@pytest.mark.parametrize("op", OPS)
def test_the_largest_products_on_our_own_engines(activation: str, op: str, engine: str) -> None:
    model, x = worst(op)
    expected = convert(model, x, ACTIVATIONS[activation], "reference")(x)
    found = convert(model, x, ACTIVATIONS[activation], engine)
    with torch.no_grad():
        assert all(sqnr_db(expected, found(x)) > 60 for _ in range(3))


@pytest.mark.broad
@pytest.mark.parametrize("engine", RUNTIMES)
@pytest.mark.parametrize(
    ("activation", "op"),
    [("u8", "linear"), ("u8", "conv2d"), ("s8", "conv2d"), ("s8", "linear"), ("dynamic", "linear")],
)
def test_the_largest_products_in_runtimes(activation: str, op: str, engine: str) -> None:
    pytest.importorskip(engine)
    model, x = worst(op)
    expected = convert(model, x, ACTIVATIONS[activation], "reference")(x)
    assert sqnr_db(expected, convert(model, x, ACTIVATIONS[activation], engine)(x)) > 60


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("activation", ["u8", "dynamic"])
def test_halves_compute_the_same_on_any_cpu(activation: str, op: str, pairs: None) -> None:
    model, x = worst(op)
    expected = convert(model, x, ACTIVATIONS[activation], "reference")(x)
    found = convert(model, x, ACTIVATIONS[activation], "onednn")
    with torch.no_grad():
        assert sqnr_db(expected, found(x)) > 60
        again = pickle.loads(pickle.dumps(found))
        assert torch.equal(again(x), found(x))


def test_halves_in_a_compiled_graph(pairs: None) -> None:
    model, x = worst("groups")
    found = convert(model, x, ACTIVATIONS["u8"], "onednn")
    with torch.no_grad():
        assert sqnr_db(found(x), torch.compile(found, backend="aot_eager")(x)) > 60


@pytest.mark.parametrize("op", ["linear", "conv2d"])
def test_a_trace_is_right_on_any_cpu(op: str) -> None:
    """It may go to another one, so that it has halves wherever it was made."""
    model, x = worst(op)
    found = convert(model, x, ACTIVATIONS["u8"], "onednn")
    with torch.no_grad():
        traced = torch.jit.trace(found, x)
        assert "bitwise_right_shift" in str(traced.inlined_graph) or "__rshift__" in str(traced.inlined_graph)
        assert sqnr_db(convert(model, x, ACTIVATIONS["u8"], "reference")(x), traced(x)) > 60


def test_seven_bits_run_whole(pairs: None) -> None:
    """The default of a CPU without VNNI is not made slower."""
    model, x = worst("conv2d")
    found = convert(model, x, ACTIVATIONS["u8"], "onednn", x86(vnni=False).weight)
    kernels = [module for module in found.modules() if isinstance(module, kernel_modules.Kernel)]
    with torch.no_grad():
        found(x)
    assert [kernel.packed is not None and kernel.packed[0] for kernel in kernels] == [False, False]


@pytest.mark.parametrize(
    ("op", "engine"), [("transposed", "onednn"), *(("groups", each) for each in ("onednn", "native", *RUNTIMES))]
)
def test_integers_that_are_written_beyond_their_spec(op: str, engine: str) -> None:
    """Whether products may overflow is up to the integers, before and after a write in place."""
    if engine in RUNTIMES:
        pytest.importorskip(engine)
    model, x = worst(op)
    both = [convert(model, x, ACTIVATIONS["u8"], each, x86(vnni=False).weight) for each in (engine, "reference")]
    compiled_too = torch.compile(both[0], backend="aot_eager") if engine == "onednn" else both[0]
    with torch.no_grad():
        for size in (30, 127, 40):
            for made in both:
                dict(made.named_buffers())["0.weight"].fill_(size)
            expected = both[1](x)
            assert sqnr_db(expected, both[0](x)) > 60
            assert sqnr_db(expected, compiled_too(x)) > 60


def test_a_state_of_eight_bits_says_where_it_belongs() -> None:
    model, x = worst("linear")
    spec = ACTIVATIONS["u8"]
    few, many = (convert(model, x, spec, "reference", weight) for weight in (x86(vnni=False).weight, WEIGHT))
    with pytest.raises(RuntimeError, match=r'takes -64 to 64.*target="x86-vnni"'):
        few.load_state_dict(many.state_dict())


def test_what_torch_has_does_not_depend_on_pairs() -> None:
    assert isinstance(overflows(), bool)
    assert supports("conv2d", "relu", False) and supports("linear", "relu", False)
