"""An error of a batch says which one it is, what it holds, and where in the model it failed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq

GOOD = torch.randn(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.weight = nn.Parameter(torch.randn(5, 4 * 36))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x).flatten(1), self.weight)


BAD = {
    "channels": (torch.randn(2, 5, 8, 8), r"^batch 2, float32 \(2, 5, 8, 8\), fails at module 'body.0' \(Conv2d\): .*"),
    "dtype": (torch.ones(2, 3, 8, 8, dtype=torch.long), r"^batch 2, int64 .*'body.0'"),
    "dict": ({"x": GOOD[:, :2]}, r"^batch 2, \{x: float32 \(2, 2, 8, 8\)\}, fails at module 'body.0'"),
    "labels": ((GOOD[:, :2], torch.zeros(2)), r"^batch 2, \(float32 \(2, 2, 8, 8\), float32 \(2,\)\), fails at"),
    "nothing": (None, r"^batch 2, a NoneType, fails at module 'body.0'"),
}


@pytest.mark.parametrize("bad", BAD)
def test_calibration_names_the_batch_and_the_module(bad: str) -> None:
    batch, told = BAD[bad]
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping(), (GOOD,))
    with pytest.raises(fq.CalibrationError, match=told) as error:
        fq.calibrate(prepared, [GOOD, batch])
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
    assert str(error.value).endswith(
        "Give batches that the float model takes, with the shapes and dtypes of its example inputs."
    )


def test_compare_names_them_too() -> None:
    model = Net().eval()
    quantized = fq.quantize(model, [GOOD], engine="reference", effort="fast")
    with pytest.raises(fq.CalibrationError, match=r"^batch 2, .*'body.0' \(Conv2d\): [^%]*$"):
        fq.compare(model, quantized, [GOOD, GOOD[:, :2]])


def test_errors_of_the_data_itself_are_left_alone() -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield GOOD
        raise OSError("the disk is gone")

    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping(), (GOOD,))
    with pytest.raises(OSError, match="the disk is gone"):
        fq.calibrate(prepared, broken())
