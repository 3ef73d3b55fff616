"""Several processes under torchrun (gloo): the script ranks.py, and the example."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def torchrun(script: Path, *args: str) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), *args], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_ranks_agree_on_calibration_training_and_sharding() -> None:
    assert "ranks agree" in torchrun(ROOT / "tests/flows/ranks.py")


@pytest.mark.slow
def test_the_example_trains_and_converts() -> None:
    pytest.importorskip("sklearn")
    line = torchrun(ROOT / "examples/qat_ddp.py", "--epochs", "1").strip().splitlines()[-1]
    assert line.startswith("lsq: fake-quantized")
    trained, converted = (float(part.split()[-1]) for part in line.split(","))
    assert abs(trained - converted) < 0.02
