"""Inputs that are not like the example's: every engine answers, or refuses, as the reference does."""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant import compat
from fxquant.engines.native.apply import has_native
from fxquant.engines.onednn import kernels
from fxquant.errors import InputError

ENGINES = ["onednn", *(["native"] if has_native() else [])]
RUNTIMES = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]
KINDS = {
    "static": fq.get_default_qconfig_mapping("x86"),
    "dynamic": fq.QConfigMapping().set_global(fq.default_dynamic_qconfig),
    "weight_only": fq.QConfigMapping().set_global(fq.weight_only_qconfig),
}


class Residual(nn.Module):
    """A block whose kernel adds a float tensor: the input as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


MODELS: dict[str, Any] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 5), nn.ReLU()), (2, 3, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)), (2, 3, 8, 8)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, stride=2), nn.ReLU()), (2, 3, 4, 4)),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (2, 6)),
    "residual": (lambda: Residual(), (2, 5, 6)),
    "tokens": (lambda: nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)), None),
}


def odd(x: Tensor) -> Iterator[tuple[str, Any]]:
    if not x.is_floating_point():
        yield from {"float": x.float(), "out of range": x + 20, "negative": x - 20}.items()
    others = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    for dtype in others if x.is_floating_point() else ():
        yield str(dtype), x.to(dtype)
    for axis in range(x.dim()):
        yield f"nothing along {axis}", x.narrow(axis, 0, 0)
        yield f"one along {axis}", x.narrow(axis, 0, 1)
    yield from {"sample": x[0], "more": x[None], "number": x.flatten()[0]}.items()
    yield from {"none": None, "list": x.tolist(), "array": x.numpy(), "sparse": x.to_sparse()}.items()
    yield "strides", x.transpose(0, 1).contiguous().transpose(0, 1)
    if x.is_floating_point():
        yield from {"infinite": x * math.inf, "gradient": x.clone().requires_grad_()}.items()
        for value in (math.nan, math.inf, -math.inf):
            yield f"one {value}", x.flatten().index_fill(0, torch.tensor(3), value).view_as(x)


def outcome(model: nn.Module, given: Any) -> Any:
    try:
        with torch.no_grad():
            return model(given)
    except Exception as error:
        return type(error)


def made(name: str, kind: str, engine: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    x = torch.randint(0, 10, (2, 5)) if shape is None else torch.randn(shape)
    prepared = fq.prepare_fx(build().eval(), KINDS[kind], (x,), target="x86")
    prepared(x)
    return fq.convert_fx(prepared, engine=engine), x


def check(name: str, kind: str, engine: str) -> None:
    (reference, x), (model, _) = made(name, kind, "reference"), made(name, kind, engine)
    for what, given in odd(x):
        expected = outcome(reference, given)
        for turn in range(3):  # the second run is written down, the third repeated
            found = outcome(model, given)
            if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
                assert found is expected, (what, turn)
                continue
            assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
            off = 0.05 * float(expected.abs().nan_to_num(0, 0).max()) if expected.numel() else 0.0
            assert torch.allclose(found, expected, atol=off, equal_nan=True), (what, turn)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_engines_do_as_the_reference_does(name: str, kind: str, engine: str) -> None:
    check(name, kind, engine)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", RUNTIMES)
def test_runtimes_do_as_the_reference_does(engine: str) -> None:
    check("conv2d", "static", engine)


@pytest.mark.parametrize("target", ["x86", "tflite"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_is_the_integer_0_of_a_fixed_grid(engine: str, target: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = fq.prepare_fx(MODELS["conv2d"][0]().eval(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    prepared(x)
    reference, model = (fq.convert_fx(prepared, engine=each) for each in ("reference", engine))
    traced = torch.jit.trace(fq.convert_fx(prepared, engine="onednn"), (x,))
    x[0, 0, 2, 2] = math.nan
    assert reference(x).isfinite().all()
    for run in (model, model, traced):
        torch.testing.assert_close(run(x), reference(x), atol=0.01, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_other_devices_are_an_error(engine: str) -> None:
    model, x = made("conv2d", "static", engine)
    with pytest.raises(InputError, match="runs on the CPU, and is given a tensor on meta"):
        model(x.to("meta"))


def test_what_cannot_be_quantized_is_named() -> None:
    model, x = made("conv2d", "static", "reference")
    with pytest.raises(InputError, match=r"input 0 \('input'\) is of torch.float64, and the model quantizes it"):
        model(x.double())
    with pytest.raises(InputError, match="is list"):
        model(input=x.tolist())


class Turned(nn.Module):
    """The input is moved before it is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2).contiguous()[:, :, 1:])


def test_what_is_quantized_behind_moves_is_named() -> None:
    x = torch.randn(2, 6, 4)
    model = fq.quantize(Turned().eval(), [x], engine="reference")
    model(x.half())
    with pytest.raises(InputError, match=r"input 0 \('x'\) is of torch.float64, and the model quantizes it"):
        model(x.double())


class Rooted(nn.Module):
    """NaN arises inside, in an op that has no kernel or in one that has."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.first, self.last, self.divides = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), divides

    def forward(self, x: Tensor) -> Tensor:
        y, side = self.first(x), x[:, 1:2].relu()
        return self.last(F.hardswish(y.relu() * side / side) if self.divides else (y.relu() * x[:, 1:2]).sqrt())


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_that_arises_inside_is_the_integer_0(engine: str, signed: bool, divides: bool) -> None:
    model, x = Rooted(divides).eval(), torch.randn(2, 3, 8, 8)
    dtype, scheme = (torch.qint8, torch.per_tensor_symmetric) if signed else (torch.quint8, torch.per_tensor_affine)
    activation = compat.MinMaxObserver.with_args(dtype=dtype, qscheme=scheme)
    qconfig = compat.QConfig(activation, compat.default_weight_observer)
    # one target: oneDNN by itself asks for other weights than the reference on CPUs without VNNI
    prepared = fq.prepare_fx(model, fq.QConfigMapping().set_global(qconfig), (x,), target="x86")
    prepared(x.abs() + 0.1)
    expected = fq.convert_fx(copy.deepcopy(prepared), engine="reference")(x)
    found = fq.convert_fx(prepared, engine=fq.Native(cache=None) if engine == "native" else engine)
    for _ in range(2):
        assert torch.allclose(found(x), expected, atol=1e-4)


@pytest.mark.parametrize("saturates", [True, False])
def test_numbers_beyond_32_bits_take_the_nearest_end(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not saturates:  # as in torch 2.15
        monkeypatch.setattr(kernels, "_saturates", lambda: False)
    x = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 0.5, math.nan]).repeat(16)
    expected = torch.tensor([255, 0, 255, 0, 186, 3], dtype=torch.uint8).repeat(16)
    assert torch.equal(kernels.quantize(x, 0.01, 136, 0, 255, torch.uint8, 3), expected)
