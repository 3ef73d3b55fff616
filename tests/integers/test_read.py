"""From a converted model to a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from integers.converted import converted


def test_what_has_no_integer_form_is_named_with_its_line() -> None:
    x = torch.randn(2, 8, 16)
    model = converted(nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Linear(16, 4)), x, "generic")
    with pytest.raises(fq.ConfigError, match=r"no integer steps for aten\.softmax"):
        fq.integer_reference(model)
    with pytest.raises(fq.StageError, match="converted"):
        fq.integer_reference(nn.Linear(2, 2))


def test_sums_that_float32_cannot_count_are_noted() -> None:
    x = torch.randn(4, 8192)
    model = converted(nn.Sequential(nn.Linear(8192, 4)), x, "npu")
    assert any("beyond the 2^24" in note for note in fq.integer_reference(model).notes)


def test_average_pools_with_the_factors_of_the_hardware_keep_their_bits() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 21, 21)
    pools = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1))
    model = converted(pools, x, "xint8")
    assert {0.984375, 1029 / 1024} <= {node.args[1] for node in model.graph.nodes if "mul" in node.name}
    reference = fq.integer_reference(model)
    assert reference.notes == ()
    with torch.no_grad():
        assert (reference(8 * x) == model(8 * x).numpy()).all()
    unrounded = fq.integer_reference(converted(pools[:2], x, "xint8"))
    assert len(unrounded.notes) == 1 and "leaves the model as floats" in unrounded.notes[0]


@pytest.mark.parametrize("gain", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("curve", [nn.Hardswish(), nn.Hardsigmoid()], ids=["hardswish", "hardsigmoid"])
def test_hard_curves_inside_of_kernels_keep_their_bits(curve: nn.Module, gain: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), curve, nn.Conv2d(16, 4, 1))
    with torch.no_grad():
        model[0].weight.mul_(gain)
        quantized = converted(model, x, "npu")
        assert any(node.name == "_1" for node in quantized.graph.nodes)  # reads the convolution, not integers
        reference = fq.integer_reference(quantized)
        assert reference.notes == ()
        assert (reference(3 * x) == quantized(3 * x).numpy()).all()
