"""What `import fxquant`, a first capture and `python -m fxquant` bring with them."""

from __future__ import annotations

import subprocess
import sys

# the compilers of torch, and what comes with an extra: each takes longer than all of fxquant
LATER = ("torch._dynamo", "torch._inductor", "sympy", "onnx", "onnxscript", "onnxruntime", "openvino", "llvmlite")
LATER += ("optuna", "ray", "PIL", "executorch", "torch.ao.quantization.quantize_fx")

_PREPARING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
fxquant.prepare_fx(model, fxquant.get_default_qconfig_mapping(), torch.ones(2, 4))(torch.ones(2, 4))
"""


def _run(*args: str) -> str:
    return subprocess.run([sys.executable, *args], check=True, capture_output=True, text=True).stdout


def test_importing_and_preparing_leave_compilers_and_extras_for_when_they_are_needed() -> None:
    found = _run("-c", f"import sys, fxquant\n{_PREPARING}\nprint(*sys.modules)").split()
    assert "fxquant.api" in found
    assert [name for name in LATER if name in found] == []


def test_the_package_is_a_command() -> None:
    assert "quantize" in _run("-m", "fxquant", "--help")
