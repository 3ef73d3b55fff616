"""What a target claims is what its engine has: every tail, residual and weighted kind ends up in an int8 kernel.

Where a target is hardware data of a device without an engine (npu), there is nothing to compare. What native code
lacks, oneDNN runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.onednn.kernel_modules import Kernel
from fxquant.engines.table import as_engine
from fxquant.graph.region import Region, runner_of
from fxquant.ops.table import OPS, Role, activation_nodes

C = 8
TAILS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "clamp": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def anchor(kind: str) -> tuple[nn.Module, Tensor]:
    """A weighted op that keeps the shape of its input, and an input."""
    if kind == "linear":
        return nn.Linear(C, C), torch.randn(4, C)
    (cls,) = OPS.by_kind[kind].modules
    dims = OPS.by_kind[kind].weight_rank - 2
    return cls(C, C, 3, padding=1), torch.randn(2, C, *(4,) * dims)  # type: ignore[call-arg]


class Net(nn.Module):
    """One group between two weighted ops, so that all of its tensors may be int8."""

    def __init__(self, kind: str, tail: str | None, residual: bool) -> None:
        super().__init__()
        self.first, self.x = anchor(kind)
        self.second, self.last = anchor(kind)[0], anchor(kind)[0]
        self.tail = TAILS[tail]() if tail else None
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        y = y + x if self.residual else y
        return self.last(self.tail(y) if self.tail is not None else y)


class Two(nn.Module):
    """An op of two tensors with a tail, between weighted ops."""

    def __init__(self, kind: str, tail: str) -> None:
        super().__init__()
        self.kind, self.x = kind, torch.randn(2, C, 4, 4)
        self.a, self.b, self.last = (nn.Conv2d(C, C, 3, padding=1) for _ in range(3))
        self.pool, self.tail = nn.MaxPool2d(2), TAILS[tail]()  # a pool, so that no convolution takes the sum

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.pool(self.a(x)), self.pool(self.b(x))
        return self.last(self.tail(a * b if self.kind == "mul" else a + b))


def converted(net: Any, engine: str | fq.Native) -> tuple[nn.Module, nn.Module]:
    """(reference, on the engine) for the engine's own target."""
    target = as_engine(engine).target()
    prepared = fq.prepare_fx(net.eval(), {"": target.qconfig}, (net.x,), target=target)
    fq.calibrate(prepared, [net.x])
    return fq.convert_fx(prepared, engine="reference"), fq.convert_fx(prepared, engine=engine)


def in_float(region: Region) -> Iterator[str]:
    """The ops of the table that a lowered graph still computes in float."""
    for node in region.graph.nodes:
        op = OPS.of_node(node, region)
        if op is None or op.role is Role.FLOAT or not activation_nodes(node, op):
            continue
        if node.target != "clamp_":  # a clamp of integers
            yield op.kind


TARGET = as_engine("onednn").target()
WEIGHTED = sorted(kind for kind in TARGET.kinds if OPS.by_kind[kind].is_product)


def check(net: Any) -> nn.Module:
    reference, lowered = converted(net, "onednn")
    assert isinstance(lowered, Region)
    assert not list(in_float(lowered))
    with torch.no_grad():
        expected = reference(net.x)
        step = (expected.max() - expected.min()) / 40
        assert (lowered(net.x) - expected).abs().max() <= step
    return lowered


@pytest.mark.parametrize("kind", WEIGHTED)
def test_a_weighted_kind_has_a_kernel(kind: str) -> None:
    lowered = check(Net(kind, None, residual=False))
    assert sum(isinstance(module, Kernel) for module in lowered.modules()) == 3


@pytest.mark.broad
@pytest.mark.parametrize(("kind", "tail"), [(kind, tail) for kind in WEIGHTED for tail in sorted(TARGET.tails[kind])])
def test_a_tail_is_fused(kind: str, tail: str) -> None:
    check(Net(kind, tail, residual=kind in TARGET.residual))


@pytest.mark.parametrize(
    ("kind", "tail"),
    [(kind, tail) for kind in TARGET.tails if kind not in WEIGHTED for tail in sorted(TARGET.tails[kind])],
)
def test_a_tail_of_two_tensors_is_fused(kind: str, tail: str) -> None:
    check(Two(kind, tail))


@pytest.mark.parametrize("kind", sorted(TARGET.residual))
def test_a_residual_is_fused(kind: str) -> None:
    check(Net(kind, None, residual=True))


needs_native = pytest.mark.skipif(not as_engine("native").available(), reason="no native code here")


@pytest.mark.broad
@needs_native
@pytest.mark.parametrize(("kind", "tail"), list(zip(itertools.cycle(WEIGHTED), sorted(TARGET.tails["linear"]))))
def test_native_code_has_it_as_well(kind: str, tail: str) -> None:
    runner = runner_of(converted(Net(kind, tail, residual=True), fq.Native(cache=None))[1])
    assert runner is not None
    assert not runner.failed
    assert not runner.outside
