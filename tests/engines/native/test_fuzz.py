"""Random geometries: each kernel agrees with the reference to one step, or compiles where this CPU cannot run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region

pytest.importorskip("llvmlite")

from fxquant.engines.native import arithmetic
from fxquant.engines.native.compiler import module_text, object_code
from fxquant.engines.native.libraries import Libraries, make_functions
from fxquant.engines.native.machine import AVX2, AVX512, AVX512_256, AVX512_BF16, ZEN4, ZEN5, Machine, runs_here
from fxquant.engines.native.placement import place
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read

MACHINES = (ZEN5, ZEN4, AVX512_BF16, AVX512, AVX512_256, AVX2)
ACTS = (nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.LeakyReLU(0.2), nn.Tanh())
_PROFILE = settings()  # a few cases, or the hundreds of `make fuzz`
LEAN = settings(_PROFILE, max_examples=max(4, _PROFILE.max_examples // 12), suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def tables_for_small_tensors() -> Iterator[None]:
    """Let small tensors, as they are here, have tables of activations; else only large ones have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "_FEW", 0)
        yield


class Attends(nn.Module):
    """Attention of queries, keys and values of one linear, with heads of any size, and masks for each query or all."""

    def __init__(self, heads: int, depth: int, rows: int, mask: str) -> None:
        super().__init__()
        self.heads, self.mask, inputs = heads, mask, heads * depth
        self.into, self.last, self.added = nn.Linear(inputs, 3 * inputs), nn.Linear(inputs, 4), nn.Linear(inputs, rows)
        self.bias = nn.Parameter(torch.randn(heads, rows, rows))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        bias = {"bias": self.bias, "keys": self.bias[:, :1], "computed": self.added(x)[:, None]}.get(self.mask)
        y = nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=self.mask == "causal")
        return self.last(y.transpose(1, 2).flatten(2))


class Ending(nn.Module):
    """An op between two quantized tensors, and a second one that reads it."""

    def __init__(self, op: nn.Module, act: nn.Module, residual: bool, outputs: int, volumes: bool = False) -> None:
        super().__init__()
        self.op, self.act, self.residual = op, act, residual
        last = nn.Conv3d if volumes else nn.Conv2d
        self.last = last(outputs, 4, 1) if outputs > 0 else nn.Linear(-outputs, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.op(x)
        return self.last(self.act(y + x if self.residual and y.shape == x.shape else y))


def check(model: nn.Module, x: Tensor, machine: Machine) -> None:
    """One step for each kernel after the inputs' is about what the outputs may differ by, at every batch."""
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(), (x,))
    with torch.no_grad():
        prepared(x)
    made = fq.convert_fx(prepared, engine="reference")
    assert isinstance(made, Region)
    graph = plain_graph(made)
    found = read(made, graph, (x,), machine)
    if not runs_here(machine):
        assert object_code(module_text(make_functions(place(found.ops), machine), machine), machine)
        return
    program = Program(found, Libraries())
    with torch.no_grad():
        expected = torch.fx.Interpreter(made, graph=graph).run(x)
        actual = program.run([x], x.shape[0])
        alone = program.run([x[1:]], x.shape[0] - 1)
    rounded = [node.args[1] for node in graph.nodes if "quantized_decomposed.quantize_per_tensor" in str(node.target)]
    step = max(scale for scale in rounded if isinstance(scale, float)) * max(1, len(rounded) - 1)
    bound = step * float(made.last.dequantized("weight").flatten(1).abs().sum(1).max()) + 1e-4
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= bound
    assert torch.equal(alone, actual[1:])
    assert torch.equal(program.run([x.permute(0, *range(2, x.dim()), 1).contiguous().movedim(-1, 1)], len(x)), actual)


@st.composite
def convolutions(draw: Any) -> tuple[nn.Module, Tensor]:
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    inputs, outputs = (groups * draw(st.integers(1, 20)) for _ in range(2))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    settings_ = {
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "padding": tuple(draw(st.integers(0, size)) for size in kernel),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
    }
    if draw(st.booleans()):
        op: nn.Module = nn.Conv2d(inputs, outputs, kernel, groups=groups, **settings_)
    else:
        settings_["padding"] = "same"
        settings_["stride"] = 1
        op = nn.Conv2d(inputs, outputs, kernel, groups=groups, **settings_)
    return finished(draw, op, inputs, outputs, 10)


@st.composite
def depthwise(draw: Any) -> tuple[nn.Module, Tensor]:
    channels = draw(st.integers(2, 90))
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    stride = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = tuple(size // 2 for size in kernel)
    op = nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels)
    return finished(draw, op, channels, channels, 7)


@st.composite
def transposed(draw: Any) -> tuple[nn.Module, Tensor]:
    inputs, outputs = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    kernel, stride = draw(st.tuples(st.integers(1, 5), st.integers(1, 5))), draw(st.integers(1, 4))
    padding = min(draw(st.integers(0, 2)), min(kernel) - 1)
    extra = draw(st.integers(0, stride - 1))
    op = nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, extra)
    return finished(draw, op, inputs, outputs, 3)


@st.composite
def pools(draw: Any) -> tuple[nn.Module, Tensor]:
    channels, kernel = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    stride, padding, ceil = draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2)), draw(st.booleans())
    op: nn.Module = draw(
        st.sampled_from(
            (
                nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil),
                nn.AvgPool2d(kernel, stride, padding, ceil_mode=ceil, count_include_pad=ceil),
                nn.AdaptiveAvgPool2d(kernel),
            )
        )
    )
    return finished(draw, op, channels, channels, 4, first=True)


@st.composite
def volumes(draw: Any) -> tuple[nn.Module, Tensor]:
    """Convolutions, plain and transposed, pools, resizes and norms of three axes."""
    three = st.tuples(*[st.integers(1, 3)] * 3)
    kernel, stride, dilation = draw(three), draw(three), draw(st.sampled_from((1, 1, 2)))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    inputs, outputs = (groups * draw(st.integers(1, 20)) for _ in range(2))
    padding, extra = tuple(draw(st.integers(0, size // 2)) for size in kernel), draw(st.integers(0, min(stride) - 1))
    kind = draw(st.sampled_from(("conv", "conv", "conv", "transposed", "transposed", "pool", "resize", "norm")))
    if kind == "conv":
        op: nn.Module = nn.Conv3d(inputs, outputs, kernel, stride, padding, dilation, groups)
    elif kind == "transposed":
        op = nn.ConvTranspose3d(inputs, outputs, kernel, stride, padding, extra)
    else:
        outputs = inputs
        op = {
            "pool": draw(st.sampled_from((nn.MaxPool3d, nn.AvgPool3d)))(kernel, stride, padding),
            "resize": nn.Upsample(scale_factor=2.0, mode=draw(st.sampled_from(("nearest", "trilinear")))),
            "norm": nn.GroupNorm(groups, inputs),
        }[kind]
    size = draw(st.tuples(*[st.integers(5, 9)] * 3))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    op = nn.Sequential(nn.Conv3d(inputs, inputs, 1), op, nn.Conv3d(outputs, outputs, 3, padding=1))
    model = Ending(op, draw(st.sampled_from(ACTS)), draw(st.booleans()), outputs, volumes=True)
    return model, torch.randn(3, inputs, *size)


@st.composite
def resized(draw: Any) -> tuple[nn.Module, Tensor]:
    channels, smooth = draw(st.integers(1, 40)), draw(st.booleans())
    size = draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    given = {"scale_factor": draw(st.sampled_from((2, 3, 0.5, 1.5, 0.7)))} if draw(st.booleans()) else {"size": size}
    how = {"mode": "bilinear", "align_corners": draw(st.booleans())} if smooth else {"mode": "nearest"}
    return finished(draw, nn.Upsample(**given, **how), channels, channels, 4, first=True)


@st.composite
def normed(draw: Any) -> tuple[nn.Module, Tensor]:
    groups, size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    channels = groups * size
    op: nn.Module = nn.GroupNorm(groups, channels) if draw(st.booleans()) else nn.InstanceNorm2d(channels, affine=True)
    return finished(draw, op, channels, channels, 2, first=True)


@st.composite
def linears(draw: Any) -> tuple[nn.Module, Tensor]:
    inputs, outputs, rows = draw(st.integers(1, 70)), draw(st.integers(1, 70)), draw(st.integers(1, 20))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    first: nn.Module = nn.Linear(inputs, outputs)
    if draw(st.booleans()):
        first = nn.Sequential(nn.LayerNorm(inputs), first)
    model = Ending(first, draw(st.sampled_from(ACTS)), draw(st.booleans()), -outputs)
    return model, torch.randn(3, rows, inputs)


@st.composite
def attentions(draw: Any) -> tuple[nn.Module, Tensor]:
    heads, depth, rows = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 80))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    mask = draw(st.sampled_from(("none", "causal", "bias", "keys", "computed")))
    return Attends(heads, depth, rows, mask), torch.randn(3, rows, heads * depth)


def finished(
    draw: Any, op: nn.Module, inputs: int, outputs: int, least: int, first: bool = False
) -> tuple[nn.Module, Tensor]:
    size = draw(st.tuples(st.integers(least, least + 14), st.integers(least, least + 14)))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    op = nn.Sequential(nn.Conv2d(inputs, inputs, 1), op) if first else op
    model = Ending(op, draw(st.sampled_from(ACTS)), draw(st.booleans()), outputs)
    return model, torch.randn(3, inputs, *size)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
class TestGeometries:
    @LEAN
    @given(convolutions())
    def test_convolutions(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(depthwise())
    def test_depthwise(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(transposed())
    def test_transposed(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(pools())
    def test_pools(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(volumes())
    def test_volumes(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(resized())
    def test_resized(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(normed())
    def test_normed(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(linears())
    def test_linears(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)

    @LEAN
    @given(attentions())
    def test_attentions(self, machine: Machine, case: tuple[nn.Module, Tensor]) -> None:
        check(*case, machine)
