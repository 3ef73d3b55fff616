"""A synthetic twin of a speaker encoder: a 3-layer LSTM on raw power of mel bands (largest 33, median 7e-5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BANDS, HIDDEN = 40, 256


class SpeakerTwin(nn.Module):
    """Embeddings of unit length that depend on the small values, as those of trained encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(BANDS, HIDDEN, 3, batch_first=True), nn.Linear(HIDDEN, HIDDEN)
        with torch.no_grad():
            for name, parameter in self.lstm.named_parameters():
                if name.startswith("weight"):
                    parameter *= 300.0 if name == "weight_ih_l0" else 3.0
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(x)
        embedding = torch.relu(self.linear(hidden[-1]))
        return embedding / (embedding.norm(dim=1, keepdim=True) + 1e-5)


def power(count: int, steps: int, seed: int) -> Tensor:
    """Exponentiated bands of `count` speakers."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, steps, BANDS, generator=generator) * 2.2 - 9.55
    return (noise + torch.randn(count, 1, BANDS, generator=generator) * 2.0).exp().clamp(max=33.0)
