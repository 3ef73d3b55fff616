"""What attention weighs its values by, for an observer beside an op that keeps it to itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Probabilities(nn.Module):
    """softmax(query key^T * scale + mask), and 0 where a mask of -inf leaves a query no key."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    @torch.no_grad()
    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return a row of probabilities for each query."""
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.scale
        if mask is None:
            return torch.softmax(scores, -1)
        scores = scores + mask
        return torch.softmax(scores, -1).masked_fill_((scores == -math.inf).all(-1, keepdim=True), 0.0)
