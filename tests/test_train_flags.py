"""Every module of a model keeps its own train or eval flag, whatever is done with the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.unused = nn.Dropout(), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)))


def flags(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


@pytest.fixture
def model() -> nn.Module:
    """A model in training with a frozen batch norm."""
    model = Net().train()
    model.norm.eval()
    return model


def test_quantize_restores_every_flag(model: nn.Module) -> None:
    x, before = torch.randn(2, 3, 8, 8), flags(model)
    fq.quantize(model, [x])
    assert flags(model) == before
    with pytest.raises(Exception, match="calibration"):
        fq.quantize(model, [x * torch.nan])
    assert flags(model) == before
    with pytest.raises(fq.errors.FxQuantError):
        fq.quantize(model, [torch.randn(2, 5, 8, 8)])
    assert flags(model) == before


def test_steps_leave_flags_alone(model: nn.Module, tmp_path: Path) -> None:
    x, before = torch.randn(2, 3, 8, 8), flags(model)
    fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (x,))
    assert flags(model) == before
    model.eval()
    model.drop.train()  # Monte Carlo dropout
    before = flags(model)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    assert flags(model) == before
    marked = flags(prepared)
    fq.calibrate(prepared, [x])
    fq.explain(prepared)
    assert flags(prepared) == marked
    converted = fq.convert_fx(prepared)
    assert flags(prepared) == marked
    marked = flags(converted)
    fq.save(converted, tmp_path / "model.fq")
    fq.explain(converted)
    fq.export_onnx(converted, tmp_path / "model.onnx", (x,))
    assert flags(converted) == marked
