"""Sections of a file as rules."""

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


def test_rules_for_the_model_op_types_and_ops() -> None:
    made = quantizer(
        quantization={
            "model_wise": {"weight": {"granularity": "per_tensor"}, "activation": {"algorithm": "kl"}},
            "optype_wise": {"Linear": {"weight": {"dtype": "fp32"}}},
            "op_wise": {"features.0.0": {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}},
        },
    )
    made.calib_dataloader = labelled()
    model = made.fit().model
    assert statuses(model) == {"features.0.0": "float", "features.2.0": "int8", "head": "float"}
    (row,) = [row for row in fq.explain(model) if row.path == "features.2.0"]
    assert "per_tensor" in row.weight


def test_the_default_qconfig_of_fx_files_is_for_all_ops_and_patterns_are_matched_whole() -> None:
    float_ = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}
    int8 = {"activation": {"dtype": ["uint8"]}, "weight": {"dtype": ["int8"]}}
    made = quantizer(quantization={"op_wise": {"default_qconfig": float_, r"features\.\d\.0": int8}})
    made.calib_dataloader = labelled()
    assert statuses(made.fit().model) == {"features.0.0": "int8", "features.2.0": "int8", "head": "float"}


def test_the_first_convolution_can_be_left_alone() -> None:
    made = quantizer(quantization={"recipes": {"first_conv_or_matmul_quantization": False}})
    made.calib_dataloader = labelled()
    assert statuses(made.fit().model)["features.0.0"] == "float"
