"""Attention in one kernel, on every machine that runs here: odd sizes, masks, scores without bounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.graph.region import Region
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, AVX512_256, AVX512_BF16, Machine, runs_here
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read

MACHINES = [
    pytest.param(machine, id=machine.name, marks=pytest.mark.skipif(not runs_here(machine), reason="not this CPU"))
    for machine in (AVX512_BF16, AVX512, AVX512_256, AVX2)
]


class Attends(nn.Module):
    def __init__(self, heads: int, depth: int, keys: int | None, mask: bool) -> None:
        super().__init__()
        self.heads, self.keys, self.mask = heads, keys, mask
        self.into, self.out = nn.Linear(heads * depth, 3 * heads * depth), nn.Linear(heads * depth, 6)

    def forward(self, x: Tensor, added: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = k[:, :, : self.keys], v[:, :, : self.keys]
        y = F.scaled_dot_product_attention(q, k, v, added if self.mask else None)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def run(
    model: Attends, x: Tensor, added: Tensor, machine: Machine, *, odd: Tensor | None = None, label: str = "attention"
) -> list[Tensor]:
    """What the graph gives, and what machine code does; a kernel of this label has to be one."""
    made = fq.quantize(model.eval(), [(x, added)], engine="reference", precision="int8")
    assert isinstance(made, Region)
    graph = plain_graph(made)
    found = read(made, graph, (x, added), machine)
    assert any(op.label.startswith(label) for op in found.ops)
    given = added if odd is None else odd
    with torch.no_grad():
        return [made(x, given), Program(found, Libraries()).run([x, given], x.shape[0])]  # type: ignore[list-item]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("length", "keys", "heads", "depth"), [(40, None, 2, 16), (9, None, 3, 12), (67, 50, 1, 20)], ids=str
)
def test_agrees_at_odd_sizes(length: int, keys: int | None, heads: int, depth: int, machine: Machine) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, length, heads * depth)
    expected, actual = run(Attends(heads, depth, keys, mask=False), x, torch.zeros(2, 1, 1, length), machine)
    assert sqnr_db(expected, actual) > 35


@pytest.mark.parametrize("machine", MACHINES)
def test_large_scores(machine: Machine) -> None:
    """Scores as large as in trained encoders: their factors, rounded to bfloat16, would move shares by a tenth."""
    torch.manual_seed(0)
    model, x = Attends(2, 32, None, mask=False), torch.randn(2, 33, 64)
    with torch.no_grad():
        model.into.weight[:128] *= 9
        q, k = model.into(x)[..., :128].chunk(2, -1)
        assert (q[..., :32] @ k[..., :32].mT / 32**0.5).abs().max() > 60
    expected, actual = run(model, x, torch.zeros(2, 1, 1, 33), machine)
    assert sqnr_db(expected, actual) > 40


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("nothing", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_masks_of_keys(nothing: float, machine: Machine) -> None:
    """Where nothing is left, a mask of the least float gives all keys the same share, and one of -inf none."""
    torch.manual_seed(0)
    x, added = torch.randn(2, 24, 32), torch.zeros(2, 1, 1, 24)
    added[:, :, :, 17:] = nothing
    empty = added.clone()
    empty[1] = nothing
    expected, actual = run(Attends(2, 16, None, mask=True), x, added, machine)
    assert sqnr_db(expected, actual) > 35
    expected, actual = run(Attends(2, 16, None, mask=True), x, added, machine, odd=empty)
    assert sqnr_db(expected[0], actual[0]) > 35 and sqnr_db(expected[1], actual[1]) > 35


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("length", "label"), [(5, "softmax"), (24, "attention"), (70, "attention")])
def test_masks_of_pairs(length: int, label: str, machine: Machine) -> None:
    """A mask may differ by query, as padding in front makes it. Few keys are products and a softmax."""
    torch.manual_seed(0)
    x = torch.randn(2, length, 32)
    added = torch.zeros(2, 1, length, length).masked_fill(torch.ones(length, length).triu(1) > 0, -math.inf)
    added[1, :, :, :3] = -math.inf
    model = Attends(2, 16, None, mask=True)
    expected, actual = run(model, x, added, machine, label=label)
    assert sqnr_db(expected, actual) > 35 and sqnr_db(expected, model(x, added)) > 25


class Hides(nn.Module):
    """Attention with a mask for each query: later keys, a bias of each head, or one that is computed."""

    def __init__(self, mask: str, length: int) -> None:
        super().__init__()
        self.mask, self.bias = mask, nn.Parameter(torch.randn(1, 2, length, length))
        self.into, self.out, self.added = nn.Linear(24, 72), nn.Linear(24, 6), nn.Linear(24, length)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        masks = {"causal": None, "bias": self.bias, "head": self.bias[:, :1], "computed": self.added(x)[:, None]}
        y = F.scaled_dot_product_attention(q, k, v, masks[self.mask], is_causal=self.mask == "causal")
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mask", ["causal", "bias", "head", "computed"])
@pytest.mark.parametrize("length", [9, 43])
def test_masks_of_queries(length: int, mask: str, machine: Machine) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, length, 24)
    made = fq.quantize(Hides(mask, length).eval(), [x], engine="reference", precision="int8")
    assert isinstance(made, Region)
    found = read(made, plain_graph(made), (x,), machine)
    assert any(op.label.startswith("attention") for op in found.ops) and not found.reasons
    with torch.no_grad():
        actual = Program(found, Libraries()).run([x], 3)
        assert isinstance(actual, Tensor) and sqnr_db(made(x), actual) > 35


class InSums(nn.Module):
    """Attention as sums over indices, in orders of their own, with a softmax of `torch.nn.functional`."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 32), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.into(x).chunk(2, -1)
        shares = F.softmax(torch.einsum("b g i d, b g j d -> b i g j", q, v), dim=-1)
        return self.out(torch.einsum("bigj,bgjd->bgid", shares, v))  # type: ignore[no-any-return]


def test_sums_over_indices_are_products() -> None:
    machine = next(machine for machine in (AVX512, AVX2) if runs_here(machine))
    torch.manual_seed(0)
    x = torch.randn(2, 3, 10, 16)
    made = fq.quantize(InSums().eval(), [x], engine="reference", precision="int8")
    assert isinstance(made, Region)
    found = read(made, plain_graph(made), (x,), machine)
    assert not found.reasons and sum(op.label.startswith("matmul") for op in found.ops) == 2
    with torch.no_grad():
        actual = Program(found, Libraries()).run([x], 2)
        assert isinstance(actual, Tensor) and sqnr_db(made(x), actual) > 35
