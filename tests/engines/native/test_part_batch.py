"""Code that merges the batch with other axes runs in machine code, as the reference does, at every batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.engines.choose import apply_engine
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native.runner import NativeRunner


class Between(nn.Module):
    """Two linears, and what is done to the rows of (batch, 12, 16) between them."""

    def __init__(self, body: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.first, self.last, self.inner = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 48)
        self.norm, self.batch_norm = nn.LayerNorm(16), nn.BatchNorm1d(16)
        self.batch_norm.running_mean = torch.randn(16)
        self.batch_norm.running_var = torch.rand(16) + 0.5
        self.bias = nn.Parameter(torch.randn(1, 2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self, self.first(x)))


def as_rows(m: nn.Module, x: Tensor) -> Tensor:
    y = x.view(-1, 16)
    return (F.gelu(m.norm(y)) * 0.5 + y).view((*x.size()[:-1], 16))


def norm_of_rows(m: nn.Module, x: Tensor) -> Tensor:
    return m.batch_norm(x.flatten(0, 1)).reshape_as(x)


def windows(m: nn.Module, x: Tensor) -> Tensor:
    """Attention of windows, with a bias, as Swin has it."""
    y = x.view(-1, 3, 4, 16).reshape(-1, 4, 16)
    rows, count, _ = y.shape
    q, k, v = m.inner(y).reshape(rows, count, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    share = ((q * 8**-0.5) @ k.transpose(-2, -1) + m.bias).softmax(-1)
    return (share @ v).transpose(1, 2).reshape(rows, count, 16).view(-1, 12, 16)


def attention(m: nn.Module, x: Tensor) -> Tensor:
    y = m.inner(x.view(-1, 4, 16)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(y[0], y[1], y[2], attn_mask=m.bias)
    return y.transpose(1, 2).reshape(x.shape[0], 12, 16)


def parts_of_rows(m: nn.Module, x: Tensor) -> Tensor:
    y = x.flatten(0, 1)
    low, high = y[:, :8], y[..., 8:]
    return torch.softmax(torch.cat((low + high, low - high), 1), 1).unflatten(0, (-1, 12))


def stays_merged(_: nn.Module, x: Tensor) -> Tensor:
    return x.reshape(-1, 16).cumsum(0).reshape(x.shape) * 0.1


def batch_inside(_: nn.Module, x: Tensor) -> Tensor:
    """The batch is the inner part of the merged axis, which no sample has alone."""
    return torch.cat((x, x * 0.5), 0).relu().view(2, -1, 12, 16).sum(0)


def batch_behind(_: nn.Module, x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(-1, 16).relu().view(12, -1, 16).transpose(0, 1)


def counts_rows(_: nn.Module, x: Tensor) -> Tensor:
    y = x.view(-1, 16)
    return (y / y.shape[0] * 12).view(-1, 12, 16) * x.size(0)


def names_sizes(_: nn.Module, x: Tensor) -> Tensor:
    """The sizes of a merged tensor are taken apart, and have to be three."""
    y = x.view(-1, 4, 16)
    rows, count, width = y.shape
    y = y.relu().reshape(rows * count, width) + 0.1
    return y.view(*x.shape[:-1], y.shape[-1])


def powers(_: nn.Module, x: Tensor) -> Tensor:
    y = x.view(-1, 16)
    return (0.5 * y * (1 + torch.tanh(y + 0.04 * torch.pow(y, 3.0)) + y**2)).view(x.shape)


BODIES = (as_rows, norm_of_rows, windows, attention, parts_of_rows, powers, names_sizes)
OTHERS = (stays_merged, batch_inside, batch_behind, counts_rows)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("body", [*BODIES, *OTHERS], ids=lambda body: body.__name__)
def test_agrees_at_every_batch(body: Callable[[nn.Module, Tensor], Tensor], mode: str) -> None:
    model, x = Between(body).eval(), torch.randn(1, 12, 16)
    reference = fq.quantize(
        model,
        [(torch.randn(8, 12, 16),)],
        example_inputs=(x,),
        mode="dynamic" if mode == "dynamic" else "static",
        engine="reference",
    )
    native = apply_engine(copy.deepcopy(reference), fq.Native(cache=None))
    assert isinstance(native, Region)
    with torch.no_grad():
        for batch in (1, 2, 3, 8):
            x = torch.randn(batch, 12, 16)
            expected, found = reference(x), native(x)
            assert expected.shape == found.shape and expected.stride() == found.stride()
            assert sqnr_db(expected, found) > 30
    runner = lowering_of(native).runner
    assert isinstance(runner, NativeRunner)
    assert runner.engine == "native"
    if body in BODIES and mode == "static":
        (program,) = runner.programs.values()
        outside = [node.name for nodes in program.outside.values() for node in nodes if not reads_size(node)]
        assert not [name for name in outside if name in runner.outside], runner.outside
