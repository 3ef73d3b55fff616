"""Round to whole numbers, in the ways that hardware does."""

from __future__ import annotations

import torch
from torch import Tensor


def round_to(x: Tensor, rounding: str) -> Tensor:
    """Round as a `Rounding` says; "half_up" sends ties towards +infinity, as floor(x + 0.5) would without rounding."""
    if rounding == "half_even":
        return torch.round(x)
    down = torch.floor(x)
    if rounding == "floor":
        return down
    # x + 0.5 is itself rounded (0.49999997 + 0.5 is 1.0 in float32); x - floor(x) is exact.
    return down + (x - down >= 0.5).to(x.dtype)
