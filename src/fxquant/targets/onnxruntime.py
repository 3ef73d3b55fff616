"""ONNX Runtime on x86 CPUs: as x86, in the forms that its QLinear kernels are made from."""

from __future__ import annotations

import dataclasses

from fxquant.config.target import Target
from fxquant.targets.generic import clip_tails
from fxquant.targets.x86 import x86


def onnxruntime(*, vnni: bool | None = None) -> Target:
    """Every add has int8 operands of its own, a conv writes int8 before any curve, and silu is a sigmoid and a mul."""
    base = x86(vnni=vnni)
    return dataclasses.replace(
        base,
        name="onnxruntime",
        tails=clip_tails(base.tails),
        residual=frozenset(),
        split=frozenset(("silu",)),
    )
