"""`Quantization` from a file to a saved model, for every approach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from config_file.quantizer import MODEL, labelled, quantizer, statuses
from fxquant.config_file import Quantization, common
from zoo import ZOO


@pytest.mark.parametrize(
    ("approach", "status"),
    [
        ("post_training_static_quant", "int8"),
        ("post_training_dynamic_quant", "dynamic"),
        ("post_training_auto_quant", "int8"),
        ("weight_only", "weight_only"),
    ],
)
def test_a_file_quantizes_saves_and_loads(approach: str, status: str, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(
        f"model: {{name: m, framework: pytorch_fx}}\nquantization: {{approach: {approach}}}\n"
    )
    made = Quantization(str(tmp_path / "conf.yaml"))
    made.model = common.Model(ZOO["plain"].build())
    made.engine = "onednn"
    made.calib_dataloader = labelled()
    quantized = made.fit()
    assert statuses(quantized.model)["head"] == status
    quantized.save(tmp_path / "out")
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(fq.load(tmp_path / "out", engine="onednn")(x), quantized(x))
    assert torch.equal(fq.load(tmp_path / "out" / "best_model.fq", engine="onednn")(x), quantized(x))
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == {"accuracy": None}


def test_the_file_alone_is_enough() -> None:
    data = {"dataset": {"dummy": {"shape": [16, 3, 16, 16], "low": -1, "high": 1}}, "batch_size": 8}
    made = quantizer(
        quantization={"calibration": {"sampling_size": 16, "dataloader": data}},
        evaluation={"accuracy": {"metric": {"MSE": {"compare_label": False}}, "dataloader": data}},
        tuning={"accuracy_criterion": {"absolute": 0.5}},
    )
    quantized = made.fit()
    accuracy = quantized.report["accuracy"]
    assert accuracy["float"] == 0.0 and 0 < accuracy["quantized"] < 0.5 and accuracy["passed"]
    assert len(quantized.report["trials"]) == 1


def test_sampling_size_counts_samples() -> None:
    seen: list[int] = []

    class Counting(list[Any]):
        def __iter__(self) -> Any:
            for batch in list.__iter__(self):
                seen.append(len(batch[0]))
                yield batch

    made = quantizer(quantization={"calibration": {"sampling_size": 12}})
    made.calib_dataloader = Counting(labelled(count=5, size=4))
    made.fit()
    assert sum(seen[-3:]) == 12 and len(seen) < 15


def test_an_eval_func_is_tuned_against_and_says_what_was_found() -> None:
    made = quantizer()
    made.calib_dataloader = labelled()
    scores = iter([0.9, 0.5, 0.95])
    made.eval_func = lambda model: next(scores)
    quantized = made.fit()
    assert quantized.report["accuracy"] == {"float": 0.9, "quantized": 0.95, "passed": True}
    assert len(quantized.report["trials"]) == 2 and quantized.report["stopped"] == "the first that passes"


def test_lists_of_values_are_searched() -> None:
    made = quantizer(
        quantization={"model_wise": {"activation": {"algorithm": ["minmax", "kl"]}}},
        tuning={"exit_policy": {"max_trials": 2}},
    )
    made.calib_dataloader = labelled()
    scores = iter([0.9, 0.5, 0.9])
    made.eval_func = lambda model: next(scores)
    trials = made.fit().report["trials"]
    assert [trial["plan"]["activation"]["observer"] for trial in trials] == ["minmax", "entropy"]


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class WithBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.branch = Branching()

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(self.conv(x)).mean((2, 3))


def test_the_guides_custom_config() -> None:
    prepare_custom_config_dict = {"non_traceable_module_class": [Branching]}
    made = quantizer()
    made.model = common.Model(WithBranch().eval(), **{"prepare_custom_config_dict": prepare_custom_config_dict})
    made.calib_dataloader = labelled()
    assert statuses(made.fit().model) == {"conv": "int8"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q: setattr(q, "eval_fn", print), "Closest: 'eval_func'"),
        (lambda q: setattr(q, "model", print), "nn.Module"),
        (lambda q: q.fit(), "calib_dataloader"),
        (lambda q: Quantization({"model": MODEL}).fit(), "no model"),
        (lambda q: common.Model(nn.Linear(1, 1), prepare_custom_dict={}), "Closest: 'prepare_custom_config"),
        (lambda q: quantizer(quantization={"approach": "quant_aware_training"}).fit(), "q_func"),
    ],
)
def test_mistakes_say_what_to_do(change: Any, says: str) -> None:
    with pytest.raises(fq.ConfigError, match=says):
        change(quantizer())


def test_nothing_within_the_tolerance_is_said_aloud() -> None:
    made = quantizer(tuning={"exit_policy": {"max_trials": 3}})
    made.calib_dataloader = labelled()
    scores = iter([0.9, 0.1, 0.3, 0.2])
    made.eval_func = lambda model: next(scores)
    with pytest.warns(UserWarning, match="NOT within the tolerance"):
        quantized = made.fit()
    assert quantized.report["accuracy"] == {"float": 0.9, "quantized": 0.3, "passed": False}
