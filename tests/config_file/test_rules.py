"""Sections of a file as rules."""

from __future__ import annotations

import fxquant as fq
from config_file.quantizer import labelled, quantizer, statuses


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
