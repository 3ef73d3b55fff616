"""TFLite's int8 specification, and its int16 activations with int8 weights.

Concatenation, pools and whatever moves values have one scale in and out. The outputs of sigmoid, softmax and tanh have
the grids that the specification fixes: 1/256 from -128 on, and 1/128 around 0.
"""

from __future__ import annotations

import dataclasses

from fxquant.config.limits import Grids
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.generic import CLIPS
from fxquant.targets.x86 import x86

_KINDS = frozenset(("sub", "softmax"))


def tflite() -> Target:
    """Activations [-128, 127] with any zero point, weights [-127, 127] per channel, int32 biases."""
    base = x86(vnni=True)
    return dataclasses.replace(
        base,
        name="tflite",
        channel_scales=frozenset(),
        kinds=(base.kinds | _KINDS) - {"conv_transpose1d", "conv_transpose3d", "hardsigmoid", "silu"},
        activation=Spec(symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", limits=(-127, 127), observer="minmax"),
        bias="int32",
        tails={kind: CLIPS for kind in base.tails if kind not in ("conv_transpose1d", "conv_transpose3d")},
        residual=frozenset(),
        share=frozenset(("avg_pool", "adaptive_avg_pool")),
        split=frozenset(("silu",)),
        ranges={"sigmoid": (0.0, 255 / 256), "softmax": (0.0, 255 / 256), "tanh": (-1.0, 127 / 128)},
        activations=Grids(bits=(8,), signed=True, granularity=("per_tensor",)),
        weights=Grids(bits=(4, 8), signed=True, symmetric=True, ends=(-127, 127)),
        biases=("int32",),
    )


def tflite_16x8() -> Target:
    """int16 activations without zero points; the sums and the biases are wider than int32 in the device."""
    base = tflite()
    return dataclasses.replace(
        base,
        name="tflite-16x8",
        activation=Spec(bits=16, observer="histogram"),
        activations=Grids(bits=(16,), signed=True, symmetric=True, granularity=("per_tensor",)),
        ranges={"sigmoid": (0.0, 32767 / 32768), "softmax": (0.0, 32767 / 32768), "tanh": (-1.0, 32767 / 32768)},
        bias=None,
        biases=("float",),
    )
