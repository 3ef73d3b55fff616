"""Metrics and data of code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.config_file import Quantization, common
from zoo import ZOO

MODEL = {"name": "m", "framework": "pytorch_fx"}


def labelled(count: int = 4, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 3, 16, 16), torch.randint(0, 10, (size,))) for _ in range(count)]


def quantizer(model: nn.Module | None = None, **sections: Any) -> Quantization:
    made = Quantization({"model": MODEL, **sections})
    made.engine = "onednn"
    made.model = model if model is not None else ZOO["plain"].build()
    return made


def test_metric_and_data_of_code() -> None:
    class Often:
        def __init__(self) -> None:
            self.reset()

        def reset(self) -> None:
            self.batches = 0

        def update(self, preds: Any, labels: Any) -> None:
            assert preds.shape == (8, 10) and labels.shape == (8,)
            self.batches += 1

        def result(self) -> float:
            return float(self.batches)

    made = quantizer()
    made.calib_dataloader = made.eval_dataloader = labelled()
    made.metric = common.Metric(Often)
    assert made.fit().report["accuracy"]["quantized"] == 4.0
