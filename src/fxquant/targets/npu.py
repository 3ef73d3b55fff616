"""NPUs that multiply s8 by s8 and requantize by a shift: every scale is a power of two, one per tensor.

The adds and poolings of such hardware work on one scale. A shift from the accumulator to the output is 0 to 16 places
to the right.
"""

from __future__ import annotations

import dataclasses

from fxquant.core.spec import Spec
from fxquant.core.target import Target
from fxquant.targets.x86 import x86


def npu(*, bias8: bool = False) -> Target:
    """With int32 biases at the accumulator's scale, or `bias8`: int8 with a power-of-two scale of their own."""
    return dataclasses.replace(
        x86(vnni=True),
        name="npu",
        activation=Spec(scale="pow2", observer="histogram"),
        weight=Spec(scale="pow2", observer="minmax"),
        bias=Spec(scale="pow2", observer="minmax") if bias8 else "int32",
        share=frozenset(("add", "mean", "avg_pool", "adaptive_avg_pool")),
        shift=(0, 16),
    )
