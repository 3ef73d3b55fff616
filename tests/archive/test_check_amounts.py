"""What calls make that torch itself cannot tell without values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.archive.check_amounts import inverse_stft


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("further", [{}, {"length": 90}, {"hop_length": 5}, {"return_complex": True}])
def test_the_shape_of_an_inverse_stft(center: bool, further: dict[str, Any]) -> None:
    sides = not further.get("return_complex", False)  # complex results have both sides
    window = torch.ones(16)
    made = torch.stft(torch.randn(2, 100), 16, 4, window=window, return_complex=True, onesided=sides)
    wanted = torch.istft(made, 16, window=window, center=center, onesided=sides, **further)
    found = inverse_stft(made.to("meta"), 16, window=window, center=center, onesided=sides, **further)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


class Denoise(nn.Module):
    """A mask of a spectrogram, as in speech enhancement."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(17, 17)
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.stft(x, 32, 8, window=self.window, return_complex=True)
        masked = whole * torch.sigmoid(self.mask(whole.abs().transpose(1, 2))).transpose(1, 2)
        return torch.istft(masked, 32, 8, window=self.window, length=x.shape[-1])


def test_a_model_that_goes_through_a_spectrogram_can_be_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 200)
    quantized = fq.quantize(Denoise().eval(), [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "denoise.fq"))
    assert torch.equal(loaded(x), quantized(x))
