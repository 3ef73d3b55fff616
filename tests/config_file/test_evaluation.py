"""Metrics and data of code."""

from __future__ import annotations

from typing import Any

from config_file.quantizer import labelled, quantizer
from fxquant.config_file import common


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
