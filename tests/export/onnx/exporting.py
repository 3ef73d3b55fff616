"""Models to export, and files run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fxquant as fq
from exact_session import exact_session


def run(path: Path, **feed: Tensor) -> list[Tensor]:
    session = exact_session(path)
    return [torch.from_numpy(np.asarray(a)) for a in session.run(None, {k: v.numpy() for k, v in feed.items()})]


def quantize(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    return fq.quantize(model.eval(), [args], example_inputs=args, engine="reference", **kwargs)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.conv(image))
        return {"boxes": self.head(hidden), "hidden": hidden.mean((2, 3))}
