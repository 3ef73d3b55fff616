"""ONNX Runtime on files, with the sums that files ask for: without VNNI its fused kernels saturate those of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fxquant.targets.cpu import cpu


def exact_session(path: Path) -> Any:
    """A session on the CPU whose sums do not saturate."""
    import onnxruntime as ort

    options = _options(ort)
    if cpu().vnni:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # its rewrite to unsigned weights fails on some: in float, then
        options = _options(ort)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _options(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return options
