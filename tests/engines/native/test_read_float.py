"""Ops on floats and on what is true or false, in machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from one_segment import Between, check_one_segment

pytest.importorskip("llvmlite")

NAN = float("nan")


def _rms(y: Tensor) -> Tensor:
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


EACH: dict[str, Callable[[Tensor], Tensor]] = {
    "rms": _rms,
    "roots": lambda y: (y.abs() + 0.1).sqrt() + (y.abs() + 0.1) ** 0.5 + (y.abs() + 0.1) ** -0.5,
    "exp": lambda y: torch.exp(-y) * y + y.exp().reciprocal() + y**3 + y.square(),
    "where": lambda y: torch.where(y > 0.1, y, y * 0.1) + y.where(y > 0, 0.5) + torch.where(y <= -0.5, 1.0, y),
    "masked_fill": lambda y: y.masked_fill(y < -0.3, 0.25),
    "maximum": lambda y: torch.maximum(y, -y) + torch.minimum(y, y * 2),
    "logic": lambda y: y * ((y > 0) & (y < 1)).float() + y * (~(y > 0.5) | (y != 0.2)).to(y.dtype),
    "logical": lambda y: y * torch.logical_xor(y > 0, y) + torch.logical_not(y) * 1.0 + y * (y >= 0.1).type_as(y),
    "several": lambda y: (y > 0) * y + (y.abs() > 0.2) * y.sigmoid() + ((y > 0) ^ (y == 0)) * y.tanh(),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", EACH)
def test_element_by_element(name: str) -> None:
    check_one_segment(Between(EACH[name]), torch.randn(2, 5, 8))


def test_infinite_and_not_a_number() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            z = self.a(x)
            found = (
                torch.maximum(y, z),
                torch.minimum(z, y),
                y > z,
                y != y,
                y.exp(),
                y.rsqrt(),
                y.masked_fill(y > z, 0.0),
            )
            return (z, *found)

    x = torch.zeros(2, 4)
    y = torch.tensor([[NAN, float("inf"), -float("inf"), 100.0], [-1.0, 0.0, 88.5, -110.0]])
    prepared = fq.prepare_fx(Odd().eval(), fq.get_default_qconfig_mapping("x86"), (x, y.nan_to_num()))
    prepared(x, torch.randn(2, 4))
    with torch.no_grad():
        reference, native = (
            fq.convert_fx(prepared, engine=each)(x, y) for each in ("reference", fq.Native(cache=None))
        )
    for expected, actual in zip(reference, native, strict=True):
        assert expected.dtype == actual.dtype
        torch.testing.assert_close(expected, actual, equal_nan=True, rtol=1e-4, atol=1e-6)


class Attends(nn.Module):
    def __init__(self, mask: Callable[[Tensor], Tensor | None], by_hand: bool = False) -> None:
        super().__init__()
        self.into, self.out, self.mask, self.by_hand = nn.Linear(16, 48), nn.Linear(16, 16), mask, by_hand

    def forward(self, x: Tensor, *masks: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        mask = self.mask(*masks)
        if self.by_hand:
            assert mask is not None
            y = (q @ k.mT / 3).masked_fill(~mask, -float("inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def keys() -> Tensor:
    found = torch.ones(2, 11, dtype=torch.bool)
    found[0, 7:] = False
    return found


MASKS: dict[str, tuple[Callable[[Tensor], Tensor | None], Tensor]] = {
    "of pairs": (lambda mask: mask, keys()[:, None, None] & torch.ones(11, 11, dtype=torch.bool).tril()),
    "of keys": (lambda mask: mask[:, None, None, :], keys()),
    "for all samples": (lambda mask: mask, torch.ones(1, 1, 11, 11, dtype=torch.bool).tril()),
    "as numbers": (lambda mask: (1.0 - mask[:, None, None, :].float()) * -1e9, keys()),
    "as floats": (lambda mask: mask[:, None, None, :] > 0.5, keys().float()),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_true_and_false(name: str) -> None:
    function, mask = MASKS[name]
    check_one_segment(Attends(function), torch.randn(2, 11, 16), mask)


def test_masks_by_hand() -> None:
    check_one_segment(Attends(lambda mask: mask[:, None, None, :], by_hand=True), torch.randn(2, 11, 16), keys())


def test_true_and_false_go_out_and_through_code() -> None:
    class Found(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            y = self.a(x)
            found = (y > 0) & mask[..., None]
            flipped = torch.bitwise_left_shift(found.long(), 1) > 0
            return self.b(y * found), found, mask | (y[..., 0] > 1), flipped

    check_one_segment(Found(), torch.randn(2, 11, 8), keys(), outside=3)
