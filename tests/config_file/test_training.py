"""Training by code and by the file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from config_file.quantizer import labelled, quantizer, statuses


def test_training_by_code() -> None:
    made = quantizer(quantization={"approach": "quant_aware_training"})
    data = labelled(count=2)
    before = made.model.model.head.weight.detach().clone()

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    made.q_func = train
    quantized = made.fit()
    assert set(statuses(quantized.model).values()) == {"int8"}
    assert torch.equal(made.model.model.head.weight, before) and not made.model.model.training


@pytest.mark.parametrize(
    ("optimizer", "criterion"),
    [
        ({"SGD": {"learning_rate": 0.01, "momentum": 0.9}}, {"CrossEntropyLoss": {"reduction": "mean"}}),
        (
            {"AdamW": None},
            {"KnowledgeDistillationLoss": {"temperature": 2, "loss_types": ["CE", "KL"], "loss_weights": [0.2, 0.8]}},
        ),
    ],
)
def test_training_by_the_file(optimizer: Any, criterion: Any) -> None:
    data = {"dataset": {"dummy": {"shape": [8, 3, 16, 16], "low": -1, "high": 1}}, "batch_size": 4}
    made = quantizer(
        quantization={
            "approach": "quant_aware_training",
            "train": {"optimizer": optimizer, "criterion": criterion, "dataloader": data, "epoch": 1},
        },
        evaluation={"accuracy": {"metric": "Accuracy", "dataloader": data}},
        tuning={"accuracy_criterion": {"absolute": 1.0}},
    )
    quantized = made.fit()
    assert set(statuses(quantized.model).values()) == {"int8"}
    assert quantized.report["accuracy"]["passed"]
