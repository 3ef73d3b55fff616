"""BPU-like automotive chips: symmetric grids without zero points, int8 or int16 activations, weights per channel.

Tensors have up to four axes of limited size; what is beyond, the CPU next to it runs.
"""

from __future__ import annotations

import dataclasses

from fxquant.config.limits import Grids, Shapes
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.x86 import x86


def bpu() -> Target:
    """int8 activations by default; rules may ask for 16 bits where a tensor needs them."""
    return dataclasses.replace(
        x86(vnni=True),
        name="bpu",
        activation=Spec(observer="histogram"),
        channel_scales=frozenset(),
        weight=Spec(granularity="per_channel", observer="minmax"),
        activations=Grids(bits=(8, 16), signed=True, symmetric=True, granularity=("per_tensor",)),
        weights=Grids(bits=(4, 8), signed=True, symmetric=True),
        shapes=Shapes(ranks=(1, 2, 3, 4), batch=4096, size=65536, values=2**30),
    )
