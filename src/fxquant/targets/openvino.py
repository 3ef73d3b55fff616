"""OpenVINO on x86 CPUs: as x86, and the product of queries and keys in attention is int8."""

from __future__ import annotations

import dataclasses

from fxquant.config.target import Target
from fxquant.targets.cpu import cpu
from fxquant.targets.x86 import x86


def openvino(*, vnni: bool | None = None) -> Target:
    """Its product of two activations has no zero points. Those of convolutions and linears cost it next to nothing.

    Biases are int32, as they are in ONNX files.
    """
    base, products = x86(vnni=cpu().vnni if vnni is None else vnni), frozenset(("attention",))
    return dataclasses.replace(
        base, name="openvino", bias="int32", kinds=base.kinds | products, signed=products, clear_ties=True
    )
