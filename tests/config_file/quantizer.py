"""A Quantization of a small model, by sections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.config_file import Quantization
from zoo import ZOO

MODEL = {"name": "m", "framework": "pytorch_fx"}


def labelled(count: int = 4, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 3, 16, 16), torch.randint(0, 10, (size,))) for _ in range(count)]


def quantizer(model: nn.Module | None = None, **sections: Any) -> Quantization:
    made = Quantization({"model": MODEL, **sections})
    made.engine = "onednn"
    made.model = model if model is not None else ZOO["plain"].build()
    return made


def statuses(model: nn.Module) -> dict[str, str]:
    return {row.path: row.status for row in fq.explain(model) if row.is_weighted}
