"""`WeightFakeQuant` in training: integers are the values that were trained, ranges follow the weight."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant
from fxquant.numerics.weights.weight_range import quantize_weight

WEIGHTS = {
    "ste": Spec(granularity="per_channel", observer="minmax", learn="ste"),
    "ste pow2": Spec(observer="minmax", learn="ste", scale="pow2"),
    "lsq": Spec(bits=4, granularity="per_channel", learn="lsq"),
    "lsq groups": Spec(bits=4, granularity="per_group", group_size=4, learn="lsq"),
    "tqt": Spec(learn="tqt"),
    "tqt per channel": Spec(learn="tqt", granularity="per_channel", axis=1),
}


@pytest.mark.parametrize("spec", WEIGHTS.values(), ids=WEIGHTS)
def test_the_integers_of_a_weight_are_the_values_that_were_trained(spec: Spec) -> None:
    weight = torch.randn(6, 8)
    quantizer = WeightFakeQuant(spec, "w", weight.shape)
    values = quantizer(weight)
    q, scale, zero_point = quantizer.quantize(weight)
    assert q.dtype == torch.int8
    assert torch.equal(fake_quantize(weight, scale, zero_point, spec), values)
    if spec.learn == "ste":
        assert torch.equal(q, quantize_weight(weight, spec, "w")[0])


@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_lsq_weights_start_at_the_least_squared_error_and_learn(observer: str) -> None:
    weight: Tensor = torch.randn(6, 80)
    spec = WEIGHTS["lsq"].with_(observer=observer)
    quantizer = WeightFakeQuant(spec, "w", weight.shape)
    assert torch.equal(quantizer.log_scale, torch.full((6,), -math.inf))
    quantizer(weight).square().sum().backward()
    best = quantize_weight(weight, spec.with_(learn=None, observer="histogram"), "w")[1]
    torch.testing.assert_close(quantizer.compute_qparams(weight)[0], best)
    assert quantizer.log_scale.grad.abs().min() > 0


@pytest.mark.parametrize("name", ["lsq", "lsq groups", "tqt", "tqt per channel"])
def test_a_learned_range_follows_the_size_of_its_weight(name: str) -> None:
    weight: Tensor = torch.randn(6, 8)
    quantizer = WeightFakeQuant(WEIGHTS[name], "w", weight.shape)
    first = quantizer(weight)
    gain = 8.0  # as of a batch norm whose running variance settles
    torch.testing.assert_close(quantizer(gain * weight), gain * first)


def test_a_weight_of_zeros_has_a_learned_range() -> None:
    weight = torch.zeros(6, 8)
    quantizer = WeightFakeQuant(WEIGHTS["lsq"], "w", weight.shape)
    assert torch.equal(quantizer(weight), weight)
    assert torch.isfinite(quantizer(torch.randn(6, 8))).all()
