"""Calls of converted models with inputs that are unlike the example's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.errors import InputError


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_wrong_channels_and_axes_are_errors_of_the_input(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], engine=engine, effort="fast")
    for wrong in [torch.randn(2, 4, 8, 8), torch.randn(2, 2, 3, 8, 8), torch.randn(8)]:
        shape = str(tuple(wrong.shape)).replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(InputError, match=rf"'input'\) is float32 {shape}, and was float32 \(2, 3, 8, 8\)"):
            quantized(wrong)
    assert not capsys.readouterr().err  # torch prints the generated code


def test_errors_of_a_hook_are_its_own() -> None:
    class Enough(Exception):
        pass

    def stop(*_: object) -> None:
        raise Enough

    quantized = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)], engine="reference")
    quantized.register_forward_hook(stop)
    with pytest.raises(Enough):
        quantized(torch.randn(5, 2, 4))
