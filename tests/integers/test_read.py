"""From a converted model to a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from zoo import ZOO


def converted(model: nn.Module, x: torch.Tensor, target: str) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    with torch.no_grad():
        prepared(x)
    return fq.convert_to_reference_fx(prepared)


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    return converted(ZOO["plain"].build(), x, "npu"), x


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
