"""Integers that go a step on give a mean what a bias of a few bits cannot, and cost nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import GPTQ, BiasCorrection, MeasuredBias, measured_bias
from fxquant.algorithms.take_rest import take_steps
from fxquant.numerics.affine import sqnr_db

DATA = [torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
TEST = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(9))


def test_steps_bring_means_home() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(5000, 20, generator=generator).double()
    weight = torch.randn(7, 20, generator=generator).double()
    mean = inputs.mean(0)
    covariance, step = (inputs - mean).t() @ (inputs - mean) / len(inputs), 0.02
    before, rest = (weight / step).round(), torch.randn(7, generator=generator).double() * 0.05

    def cost(values: Tensor) -> tuple[Tensor, Tensor]:
        lost = weight - step * values
        left = (rest - step * (values - before) @ mean).square()
        return ((lost @ covariance) * lost).sum(1) + left, left

    steps = torch.full((1, 7, 20), step).double()
    after = take_steps(
        before[None], steps, (weight - step * before)[None], covariance[None], mean[None], rest[None], (-128, 127)
    )[0]
    assert bool((cost(after)[0] <= cost(before)[0] + 1e-12).all())
    assert float(cost(after)[1].sum()) < 0.01 * float(cost(before)[1].sum())


def test_integers_stay_inside_of_their_ends() -> None:
    ends, one = torch.full((1, 2, 3), 127.0).double(), torch.ones(1, 2, 3).double()
    rest = torch.full((1, 2), 5.0).double()
    made = take_steps(ends, one, 0 * one, torch.eye(3).double()[None], one[:, 0], rest, (-128, 127))
    assert torch.equal(made, ends)


def network() -> nn.Module:
    """Biases of which some are a hundred times as large as others."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                assert layer.bias is not None
                layer.bias.copy_(torch.randn_like(layer.bias) * torch.linspace(-4, 1, len(layer.bias)).exp())
    return model


def test_biases_of_a_few_bits_cost_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = network(), []
    for some in (False, True):
        with monkeypatch.context() as patched:
            if not some:
                patched.setattr(measured_bias, "take_rest", lambda *_: None)
            made = fq.quantize(
                model,
                DATA,
                target="xint8",
                algorithms=(GPTQ(), BiasCorrection(), MeasuredBias()),
                engine="reference",
                precision="int8",
            )
            assert not fq.check_target(made, "xint8")
            found.append(sqnr_db(model(TEST), made(TEST)))
    assert found[1] > found[0] + 1
