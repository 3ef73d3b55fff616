"""Sums, extremes, variances and norms over axes, in machine code; a decoder's layer that stands on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from one_segment import Between, BetweenPixels, check_one_segment

pytest.importorskip("llvmlite")

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda y: y + y.sum(-1, keepdim=True) + y.sum(1, keepdim=True) + y.mean((1, 2), keepdim=True),
    "extremes": lambda y: y - y.amax(-1, keepdim=True) + y.amin(1, keepdim=True) + torch.amax(y, 2).unsqueeze(-1),
    "var": lambda y: y * y.var(-1, keepdim=True) + torch.var(y, dim=1, correction=0, keepdim=True),
    "std": lambda y: y / y.std(-1, keepdim=True) + y.std(dim=1, unbiased=False, keepdim=True),
    "norm": lambda y: y / (y.norm(dim=-1, keepdim=True) + 1) + 0.1 * torch.linalg.vector_norm(y, dim=1, keepdim=True),
    "normalize": lambda y: F.normalize(y, dim=-1) + F.normalize(y, dim=1),
    "rms_norm": lambda y: F.rms_norm(y, (20,)) + F.rms_norm(y, (5, 20), 2 * torch.ones(5, 20), 1e-6),
    "softmax": lambda y: torch.softmax(y, 1) * y,
    "means of tokens": lambda y: y.mean(1),
}
PIXELS: dict[str, Callable[[Tensor], Tensor]] = {
    "response norm": lambda y: (
        y * y.norm(p=2, dim=(2, 3), keepdim=True) / y.norm(dim=(2, 3), keepdim=True).mean(1, True)
    ),
    "over channels": lambda y: y * torch.sigmoid(y.amax(1, keepdim=True) + y.mean(1, keepdim=True)),
    "over rows": lambda y: y + y.mean(3, keepdim=True) + y.sum(-2, keepdim=True) * 0.1,
    "softmax": lambda y: F.softmax(y, dim=1) * y + y.softmax(-2),
    "pixels": lambda y: y * y.sum((2, 3), keepdim=True).sigmoid(),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    check_one_segment(Between(ROWS[name]), torch.randn(2, 5, 8))


@pytest.mark.broad
@pytest.mark.parametrize("name", PIXELS)
def test_pixels(name: str) -> None:
    check_one_segment(BetweenPixels(PIXELS[name]), torch.randn(2, 3, 9, 11))


def test_modules() -> None:
    norms = nn.Sequential(nn.RMSNorm(20), nn.RMSNorm([5, 20], eps=1e-5, elementwise_affine=False))
    check_one_segment(Between(norms), torch.randn(2, 5, 8))
    check_one_segment(BetweenPixels(nn.Softmax2d()), torch.randn(2, 3, 9, 11))


def test_what_is_not_a_number_is_the_largest() -> None:
    class Extremes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.a(x.nan_to_num()), x.amax(-1), x.amin(1), x.sum(-1), (x * 1.0).amax(-1)

    x = torch.randn(3, 37, 4)
    model = Extremes().eval()
    native = fq.quantize(model, [x], engine=fq.Native(cache=None))
    x[0, 5, 1], x[1, 36, 3], x[1, 0, 0], x[2, 1, 2] = (float(each) for each in ("nan", "inf", "-inf", "nan"))
    with torch.no_grad():
        for expected, actual in zip(model(x)[1:], native(x)[1:], strict=True):
            torch.testing.assert_close(expected, actual, equal_nan=True)


class Layer(nn.Module):
    """A decoder's layer: norms by roots of means of squares, turned queries and keys, heads in groups, gates."""

    def __init__(self, groups: str) -> None:
        super().__init__()
        self.groups = groups
        self.q, self.o, self.up = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.k, self.v = (nn.Linear(32, 16, bias=False) for _ in range(2))
        angles = torch.arange(16.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001]).repeat(2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.weight = nn.Parameter(torch.rand(32))

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def turned(self, x: Tensor) -> Tensor:
        count = x.shape[-2]
        half = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * self.cos[:count] + half * self.sin[:count]  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        batch, count, _ = x.shape
        y = self.norm(x)
        q, k, v = (each(y).view(batch, count, -1, 8).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        if self.groups == "expand":
            k, v = (z[:, :, None].expand(batch, 2, 2, count, 8).reshape(batch, 4, count, 8) for z in (k, v))
        if self.groups == "repeat":
            k, v = (z.repeat_interleave(2, 1) for z in (k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups == "enable_gqa")
        x = x + self.o(z.transpose(1, 2).reshape(batch, count, -1))
        return x + F.silu(self.up(self.norm(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("groups", ["expand", "repeat", "enable_gqa"])
def test_layer_of_a_decoder(groups: str) -> None:
    check_one_segment(Layer(groups), torch.randn(2, 11, 32))
