"""ARM CPUs, by the kernels that run there.

arm       dot products of s8 by s8: signed activations with a zero point, weights per channel
qnnpack   u8 by s8, one scale for a whole weight: the kernels of torch's mobile builds
"""

from __future__ import annotations

import dataclasses

from fxquant.config.limits import Grids
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.generic import CLIPS, clip_tails
from fxquant.targets.x86 import x86


def arm() -> Target:
    """Kernels with clips inside; the adds are kernels of their own."""
    base = x86(vnni=True)
    return dataclasses.replace(
        base,
        name="arm",
        channel_scales=frozenset(),
        activation=Spec(symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", limits=(-127, 127), observer="minmax"),
        activations=Grids(bits=(8,), signed=True, granularity=("per_tensor",)),
        weights=Grids(bits=(4, 8), signed=True, symmetric=True),
        tails=clip_tails(base.tails),
        residual=frozenset(),
    )


def qnnpack() -> Target:
    """Full 8 bits for activations: the sums are int32 from the start. One relu or clamp inside a kernel."""
    base = x86(vnni=True)
    kinds = base.kinds - {"conv3d", "conv_transpose3d", "gelu", "silu", "pixel_shuffle"}
    return dataclasses.replace(
        base,
        name="qnnpack",
        channel_scales=frozenset(),
        kinds=kinds,
        activation=Spec(signed=False, symmetric=False, observer="histogram"),
        weight=Spec(observer="minmax"),
        activations=Grids(bits=(7, 8), signed=False, granularity=("per_tensor",)),
        weights=Grids(bits=(8,), granularity=("per_tensor", "per_channel")),
        tails={kind: CLIPS for kind in base.tails if kind in kinds},
        residual=frozenset(),
        split=frozenset(("silu",)),
    )
