"""A beam finds the best integers of short rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fxquant.algorithms.beam import beam
from fxquant.algorithms.gptq import choose_integers
from fxquant.algorithms.round_by import cost
from fxquant.config.spec import Spec
from fxquant.numerics.affine import dequantize


def moments(groups: int, features: int, seed: int = 0) -> Tensor:
    """H of inputs that go together, as neighbours in a picture do."""
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, 500, features, generator=dice) @ torch.randn(groups, features, features, generator=dice)
    return (x.transpose(1, 2) @ x).double() / 500


def factor_of(second: Tensor) -> Tensor:
    """The upper factor of the inverse."""
    lower = torch.linalg.cholesky(second.flip(1, 2)).flip(1, 2)
    return torch.linalg.inv(lower).float()


def lost(rows: Tensor, made: Tensor, second: Tensor) -> Tensor:
    off = (rows - made).double()
    return torch.einsum("...f,fh,...h->...", off, second, off)


def test_the_best_of_all_integers_is_found() -> None:
    second, rows = moments(1, 4), torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(1)) * 2
    one, zero = torch.ones_like(rows), torch.zeros_like(rows)
    made = beam(rows, one, zero, factor_of(second), (-8, 7))[0, :, 0]
    for row, found in zip(rows[0], made, strict=True):
        near = [[float(each.floor()) + step for step in (-1, 0, 1, 2)] for each in row]
        every = torch.tensor([*itertools.product(*near)]).clamp(-8, 7)
        assert float(lost(row, found, second[0])) == pytest.approx(float(lost(row, every, second[0]).min()))


def test_zero_points_and_ends_hold() -> None:
    second, rows = moments(3, 5), torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(1)) * 40
    made = beam(rows, torch.ones_like(rows), torch.full_like(rows, 3.0), factor_of(second), (0, 15))
    assert float(made.min()) >= 0 and float(made.max()) == 15 and torch.equal(made, made.round())


@pytest.mark.parametrize("spec", [Spec(observer="minmax"), Spec(bits=4, granularity="per_channel", observer="minmax")])
def test_filters_of_depthwise_convolutions_lose_less(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    second = moments(40, 9)
    weight = torch.randn(40, 1, 3, 3, generator=torch.Generator().manual_seed(2))
    scale = torch.tensor(0.5) if spec.granularity == "per_tensor" else torch.full((40,), 0.5)
    zero = torch.zeros_like(scale, dtype=torch.int32)

    def loss() -> Tensor:
        integers, step = choose_integers(weight, second, scale, zero, spec, 0.01)
        return cost(weight - dequantize(integers, step, zero, spec), second)

    with_beam = loss()
    monkeypatch.setattr("fxquant.algorithms.gptq._SHORT", 0)
    assert float(with_beam.sum()) < 0.99 * float(loss().sum())
    assert spec.bits < 8 or bool((with_beam <= loss() + 1e-9).all())
