"""The oneDNN engine agrees with the reference graph, keeps its state, and says what it could not run in int8."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from engines.onednn.on_kernels import both
from fxquant.engines.onednn.kernel_modules import ConvKernel, LinearKernel
from fxquant.engines.onednn.support import supports
from fxquant.graph.lowering import unlower
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO, build

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


def outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> list[Tensor]:
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(*args, **(kwargs or {}))) if isinstance(leaf, Tensor)]


@pytest.mark.broad
@pytest.mark.parametrize("name", ZOO)
def test_agrees_with_the_reference(name: str) -> None:
    model, args, kwargs = build(name)
    reference, lowered = both(model, *args, **kwargs)
    for expected, actual in zip(outputs(reference, args, kwargs), outputs(lowered, args, kwargs), strict=True):
        # rounding ties may fall the other way, a step of one tensor on the way; nothing else may differ
        assert sqnr_db(expected, actual) > 50
    assert lowered.state_dict().keys() == reference.state_dict().keys()
    for twin in (copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered))):
        for left, right in zip(outputs(lowered, args, kwargs), outputs(twin, args, kwargs), strict=True):
            assert torch.equal(left, right)
    back = unlower(copy.deepcopy(lowered))
    for left, right in zip(outputs(reference, args, kwargs), outputs(back, args, kwargs), strict=True):
        assert torch.equal(left, right)


class Residual(nn.Module):
    """The tensor that is added to is also read later, as int8 and through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        y = torch.relu(self.b(x) + x)
        return self.c(y) + self.d(x.flatten(1).view_as(x))


def test_the_accumulated_tensor_is_copied_while_it_is_needed() -> None:
    x = torch.randn(2, 16, 8, 8)
    reference, lowered = both(Residual(), x)
    assert any(k.accumulate is not None and k.accumulate.copy for k in lowered.kernels.children())
    assert sqnr_db(reference(x), lowered(x)) > 50
    assert torch.equal(lowered(x), lowered(x))


@pytest.mark.broad
@pytest.mark.parametrize("groups", [1, 4, 16], ids="groups{}".format)
@pytest.mark.parametrize("stride", [1, 2], ids="stride{}".format)
@pytest.mark.parametrize("kernel", [1, 3], ids="kernel{}".format)
@pytest.mark.parametrize("dims", [1, 2, 3], ids="{}d".format)
def test_convolutions(dims: int, kernel: int, stride: int, groups: int) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    model = conv(16, 32, kernel, stride, padding=kernel // 2, dilation=1, groups=groups)
    x = torch.randn(2, 16, *(7,) * dims) + 0.7
    reference, lowered = both(nn.Sequential(model), x)
    assert any(isinstance(module, ConvKernel) for module in lowered.modules())
    torch.testing.assert_close(lowered(x), reference(x), rtol=1e-4, atol=1e-4)


class Activation(nn.Module):
    def __init__(self, first: nn.Module, act: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.act, self.last = first, act, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.3, 0.4),
    "hardswish": nn.Hardswish(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "tanh": nn.Tanh(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "sigmoid": nn.Sigmoid(),
    "hardsigmoid": nn.Hardsigmoid(),
}


@pytest.mark.broad
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["conv2d", "linear"])
def test_activations(kind: str, act: str) -> None:
    make = (lambda: nn.Conv2d(8, 8, 1)) if kind == "conv2d" else (lambda: nn.Linear(8, 8))
    x = torch.randn(2, 8, 8, 8)
    reference, lowered = both(Activation(make(), ACTIVATIONS[act], make()), x)
    assert sqnr_db(reference(x), lowered(x)) > 45


@pytest.mark.parametrize("batch", [1, 2, 5, 3, 8], ids=str)
def test_other_batch_sizes(batch: int) -> None:
    reference, lowered = both(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)), torch.randn(2, 3, 8, 8)
    )
    x = torch.randn(batch, 3, 8, 8)
    torch.testing.assert_close(lowered(x), reference(x), rtol=1e-4, atol=1e-3)


class Unbatched(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = getattr(nn, f"Conv{dims}d")
        self.a, self.b = conv(3, 4, 3, padding=1), conv(4, 4, 3, padding=1)
        self.up = nn.Identity() if dims == 3 else getattr(nn, f"ConvTranspose{dims}d")(4, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        out: Tensor = self.up((self.b(x) + x).relu())
        return out


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_sample_without_a_batch(dims: int, mode: Any) -> None:
    model, x = Unbatched(dims).eval(), torch.randn(3, *[8] * dims)
    lowered = fq.quantize(model, [x], example_inputs=(x,), mode=mode)
    for _ in range(3):
        assert sqnr_db(model(x).detach(), lowered(x)) > 30
    assert sqnr_db(lowered(x), lowered(x.unsqueeze(0))[0]) > 60


@pytest.mark.parametrize("build", [lambda: nn.Conv2d(3, 4, 3), lambda: nn.Linear(3, 4)], ids=["conv", "linear"])
def test_sizes_that_do_not_fit_are_named(build: Any) -> None:
    model = nn.Sequential(build(), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 3)
    lowered = fq.quantize(model, [x])
    with pytest.raises(RuntimeError, match=r"weight of \(4, 3.*\) cannot take an input of \(2, 5, 8, 5\)"):
        lowered(torch.randn(2, 5, 8, 5))


@pytest.mark.parametrize("size", [(2, 8), (8, 4), (1, 1)])
def test_an_image_smaller_than_the_kernel_is_an_error(size: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (5, 3), padding=(1, 0), dilation=(1, 2)), nn.ReLU()).eval()
    lowered = fq.quantize(model, [torch.randn(2, 3, 8, 8)], engine="onednn")
    assert lowered(torch.randn(1, 3, 3, 5)).shape == (1, 4, 1, 1)
    with pytest.raises(RuntimeError, match="smaller than the kernel"):
        lowered(torch.randn(2, 3, *size))


@pytest.mark.parametrize("shape", [(4, 0), (0, 0), (2, 3, 0), (4, 7)])
def test_a_linear_without_features_is_an_error(shape: tuple[int, ...]) -> None:
    quantized = fq.quantize(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), [torch.randn(4, 8)])
    with pytest.raises(RuntimeError, match=r"weight of \(8, 8\) cannot take an input of"):
        quantized(torch.randn(shape))


def test_narrow_grids_saturate_at_their_own_ends() -> None:
    qconfig = fq.QConfig(activation=fq.Spec(bits=7, signed=False, symmetric=False), weight=fq.default_qconfig.weight)
    mapping = fq.QConfigMapping().set_global(qconfig)
    x = torch.randn(2, 8, 8, 8)
    reference, lowered = both(nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1)), x, mapping=mapping)
    big = x * 10
    torch.testing.assert_close(lowered(big), reference(big), rtol=1e-4, atol=1e-4)


def test_what_no_kernel_takes_is_named() -> None:
    qconfig = fq.QConfig(activation=fq.Spec(bits=12), weight=fq.default_qconfig.weight)
    quantized = fq.quantize(
        nn.Sequential(nn.Linear(8, 8)).eval(),
        [torch.randn(2, 8)],
        qconfig_mapping=fq.QConfigMapping().set_global(qconfig),
    )
    assert not any(isinstance(module, LinearKernel) for module in quantized.modules())
    row = next(iter(fq.explain(quantized)))
    assert row.status == "float"
    assert "its input is not int8" in row.reason


def test_load_state_dict_reaches_the_kernels() -> None:
    x = torch.randn(2, 8)
    first, second = (fq.quantize(nn.Sequential(nn.Linear(8, 8)).eval(), [x]) for _ in range(2))
    second(x)
    second.load_state_dict(first.state_dict())
    # the scales of activations are in the graph, so both must have seen the same data to agree
    assert torch.equal(first(x), second(x))


@torch.no_grad()
def test_transposed_weights_and_sums_that_stay_float() -> None:
    """Kernels read integers in order; an int8 sum needs an int8 output."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(16))
            self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.conv1(x))
            y = nn.functional.elu(self.conv2(y) + y)
            return torch.addmm(self.bias, y.mean((2, 3)), self.weight)

    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    reference = fq.convert_fx(prepared, engine="reference")(x)
    assert sqnr_db(reference, fq.convert_fx(prepared)(x)) > 30


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("scale", ["float", "pow2"])
def test_signed_activations_and_one_scale_per_weight(granularity: str, scale: str) -> None:
    qconfig = fq.QConfig(
        activation=fq.Spec(signed=True, symmetric=True, scale=scale),
        weight=fq.Spec(granularity=granularity, scale=scale),
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(72, 4))
    x = torch.randn(2, 3, 7, 7)
    reference, lowered = both(model, x, mapping={"": qconfig})
    assert {row.status for row in fq.explain(lowered) if row.kind in ("conv2d", "linear")} == {"int8"}
    torch.testing.assert_close(lowered(x), reference(x), rtol=1e-3, atol=1e-3)


def test_layouts_with_and_without_a_zero_point_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    for low in (0.0, -1.0):  # a grid without a zero point, then one with
        x = torch.linspace(low, 1, 2 * 16 * 9 * 9).view(2, 16, 9, 9)
        quantized = fq.quantize(nn.Sequential(nn.Conv2d(16, 32, 3, padding=1)), [x], engine="onednn")
        with torch.inference_mode():
            quantized(x), quantized(x), quantized(x)
            capfd.readouterr()
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                quantized(x)
        said = capfd.readouterr().out
        assert "convolution" in said and "16x3x3" not in said  # nor a reorder of the weight
