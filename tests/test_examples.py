"""The examples run, where the packages that they show are installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "qat_lightning.py": ("lightning", "pytorch_lightning"),
    "qat_hf_trainer.py": ("transformers",),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_trains_and_converts(name: str) -> None:
    pytest.importorskip("sklearn")
    if not any(importlib.util.find_spec(package) for package in EXAMPLES[name]):
        pytest.skip(f"needs {EXAMPLES[name][0]}")
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
