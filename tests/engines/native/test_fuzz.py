"""Random geometries: each kernel agrees with the reference to one step, on every machine that this CPU can be."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region

pytest.importorskip("llvmlite")

from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, Machine, runs_here
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read
from fxquant.engines.native.runner import plain_graph

MACHINES = [machine for machine in (AVX512, AVX2) if runs_here(machine)]
ACTS = (nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.LeakyReLU(0.2), nn.Tanh())
_PROFILE = settings()  # a few cases, or the hundreds of `make fuzz`
LEAN = settings(_PROFILE, max_examples=max(4, _PROFILE.max_examples // 12), suppress_health_check=list(HealthCheck))


class Ending(nn.Module):
    """An op between two quantized tensors, and a second one that reads it."""

    def __init__(self, op: nn.Module, act: nn.Module, residual: bool, outputs: int) -> None:
        super().__init__()
        self.op, self.act, self.residual = op, act, residual
        self.last = nn.Conv2d(outputs, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.op(x)
        return self.last(self.act(y + x if self.residual and y.shape == x.shape else y))


def check(model: nn.Module, x: Tensor, machine: Machine) -> None:
    """One step of the last grid is about what the outputs may differ by, at every batch."""
    made = fq.quantize(model.eval(), [(x,)], example_inputs=(x,), engine="onednn")
    assert isinstance(made, Region)
    graph = plain_graph(made)
    program = Program(read(made, graph, (x,), machine), Libraries())
    with torch.no_grad():
        expected = torch.fx.Interpreter(made, graph=graph).run(x)
        actual = program.run([x], x.shape[0])
        alone = program.run([x[1:]], x.shape[0] - 1)
    scales = [node.args[1] for node in graph.nodes if "quantize_per_tensor" in str(node.target)]
    step = max(scale for scale in scales if isinstance(scale, float))
    bound = step * float(made.last.dequantized("weight").abs().sum((1, 2, 3)).max()) + 1e-4
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= bound
    assert torch.equal(alone, actual[1:])


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
                nn.Upsample(scale_factor=2),
            )
        )
    )
    first = nn.Conv2d(channels, channels, 1)
    return finished(draw, nn.Sequential(first, op), channels, channels, 4)


def finished(draw: Any, op: nn.Module, inputs: int, outputs: int, least: int) -> tuple[nn.Module, Tensor]:
    size = draw(st.tuples(st.integers(least, least + 14), st.integers(least, least + 14)))
    torch.manual_seed(draw(st.integers(0, 2**16)))
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
