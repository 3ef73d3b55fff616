"""ONNX Runtime on x86 CPUs: as x86, in the forms that its QLinear kernels are made from."""

from __future__ import annotations

import dataclasses

from fxquant.core.target import Target
from fxquant.targets.x86 import x86

_CLIPS = frozenset(("relu", "clamp"))  # become the ends of the output's grid


def onnxruntime(*, vnni: bool | None = None) -> Target:
    """Every add has int8 operands of its own, a conv writes int8 before any curve, and silu is a sigmoid and a mul."""
    base = x86(vnni=vnni)
    tails = {kind: _CLIPS if kind.startswith("conv") else kinds for kind, kinds in base.tails.items()}
    return dataclasses.replace(base, name="onnxruntime", tails=tails, residual=frozenset(), split=frozenset(("silu",)))
