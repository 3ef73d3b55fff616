"""TensorRT: symmetric grids without zero points, weights per tensor or channel, float biases.

Both operands of a residual add are int8 tensors of their own: it is fused by the builder, which needs their grids.
"""

from __future__ import annotations

import dataclasses

from fxquant.config.limits import Grids
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.generic import CLIPS
from fxquant.targets.x86 import x86


def tensorrt() -> Target:
    """Activations [-128, 127], weight scales max|w| / 127, ties to even."""
    base = x86(vnni=True)
    return dataclasses.replace(
        base,
        name="tensorrt",
        channel_scales=frozenset(),
        kinds=base.kinds - {"embedding"},
        activation=Spec(observer="histogram"),
        weight=Spec(granularity="per_channel", limits=(-127, 127), observer="minmax"),
        tails=dict.fromkeys(base.tails, CLIPS),
        residual=frozenset(),
        activations=Grids(
            bits=(8,), signed=True, symmetric=True, granularity=("per_tensor",), scale="float", rounding="half_even"
        ),
        weights=Grids(bits=(4, 8), signed=True, symmetric=True, rounding="half_even", ends=(-127, 127)),
        biases=("float",),
    )
