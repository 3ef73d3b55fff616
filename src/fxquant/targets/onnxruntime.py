"""ONNX Runtime on x86 CPUs: as x86, except that its convolutions do not take in a residual add."""

from __future__ import annotations

import dataclasses

from fxquant.core.target import Target
from fxquant.targets.x86 import x86


def onnxruntime(*, vnni: bool | None = None) -> Target:
    """Every add has int8 operands of its own, which is the form that QLinearConv and QLinearAdd are made from."""
    return dataclasses.replace(x86(vnni=vnni), name="onnxruntime", residual=frozenset())
