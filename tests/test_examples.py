"""The examples run, in their short form, and come to what they claim. Most share this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
FRAMEWORKS = {
    "qat_lightning.py": ("lightning", "pytorch_lightning"),
    "qat_hf_trainer.py": ("transformers",),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the main of an example."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return lambda name, *arguments: importlib.import_module(name).main(["--quick", *arguments])


def test_post_training_end_to_end(run: Callable[..., Any]) -> None:
    found = run("image_classification_ptq")
    assert found["float"] > 0.8 and found["int8"] > found["float"] - 0.02
    assert found["size ratio"] < 0.8  # most of so small a file is names
    assert found["state_dict"] == found["whole model"] == found["model.fq"] == found["int8"]
    assert found["weight difference"] < 0.01


def test_training_with_powers_of_two(run: Callable[..., Any]) -> None:
    pytest.importorskip("onnxruntime")
    found = run("image_classification_qat")
    assert found["converted"] > found["float"] - 0.02 and found["forbidden"] == 0
    assert abs(found["QAT"] - found["converted"]) < 0.01 and found["ONNX Runtime"] > 0.9


@pytest.mark.slow
def test_detection(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    found = run("detection")
    assert found["PTQ int8"][0] > 20 and found["QAT power-of-two"][0] > 10
    assert found["int8 convolutions"][0] == 113
    assert "without --data" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["detection", "image_classification_ptq"])
def test_data_that_is_missing_is_said(run: Callable[..., Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(name, "--data", "nowhere")
    assert "there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["detection", "image_classification_qat"])
def test_files_that_are_missing_are_named(
    run: Callable[..., Any], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(name, "--data", str(tmp_path))
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.count(str(tmp_path)) == 1 and importlib.import_module(name).FILES[0] in said


def test_detection_heads(run: Callable[..., Any]) -> None:
    found = run("detection_heads")
    assert found["dfl: pixels"] < 4 and found["dfl: float convolutions"] == found["ssd: float convolutions"] == 0
    assert found["ssd: boxes"] > 0.6


def test_wrapped_post_processing(run: Callable[..., Any]) -> None:
    found = run("retinanet_wrapped")
    assert found["int8 convolutions in the head"] >= 4


def test_custom_modules(run: Callable[..., Any]) -> None:
    found = run("custom_module")
    assert set(found) == {"static", "dynamic", "weight_only"} and min(found.values()) > 25


def test_lstm_tagger(run: Callable[..., Any]) -> None:
    found = run("lstm_tagger")
    assert min(found.values()) > found["float"] - 0.05


def test_transformer_encoder(run: Callable[..., Any]) -> None:
    found = run("transformer_encoder")
    assert found["int8 linears"] == 1.0 and abs(found["static"] - found["float"]) < 0.1


def test_conf_yaml(run: Callable[..., Any]) -> None:
    found = run("conf_yaml_tuning")
    assert found["tuned"] >= 0.99 * found["float"] and found["loaded"] == found["tuned"]


def test_tuning_has_trials(run: Callable[..., Any]) -> None:
    found = run("tune_on_ray")  # its short form runs in this process; tests/tuning has Ray
    assert found["trials"] >= 1 and (not found["passed"] or found["tuned"] >= found["float"] - 0.011)


def test_onnx_deployment(run: Callable[..., Any]) -> None:
    pytest.importorskip("onnxruntime")
    found = run("onnx_deployment")
    assert found["onnxruntime"] > found["float"] - 0.02 and found["onnxruntime agrees"] > 0.98


def test_coco_average_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    precision = importlib.import_module("_coco").average_precision
    boxes = [[[3, 10.0, 10.0, 60.0, 80.0]], [[5, 0.0, 0.0, 40.0, 40.0]]]
    right = [torch.tensor([[10.0, 10.0, 60.0, 80.0, 0.9, 3.0]]), torch.tensor([[0.0, 0.0, 40.0, 40.0, 0.9, 5.0]])]
    assert precision(right, boxes) == pytest.approx((100.0, 100.0))
    assert precision([right[0], right[0]], boxes) == pytest.approx((50.0, 50.0))
    assert precision([torch.zeros(0, 6), torch.zeros(0, 6)], boxes) == (0.0, 0.0)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_example_trains_and_converts(name: str) -> None:
    pytest.importorskip("sklearn")
    if not any(importlib.util.find_spec(package) for package in FRAMEWORKS[name]):
        pytest.skip(f"needs {FRAMEWORKS[name][0]}")
    if name == "qat_hf_trainer.py" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("the Trainer needs accelerate")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--epochs", "1"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trained, converted = (float(part.split()[-1]) for part in done.stdout.splitlines()[-1].split(","))
    assert abs(trained - converted) < 0.02
