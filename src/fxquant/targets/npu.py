"""NPUs that multiply s8 by s8 and requantize by a shift: every scale is a power of two, one per tensor.

npu     adds and poolings work on one scale; a shift from the accumulator to the output is 0 to 16 places to the right
xint8   biases are int8, too, and adds, products, hard-sigmoids and biases have limits of their own

xint8-hard is the same where there is no table for sigmoids: they are computed as hard-sigmoids, which costs networks
that were not trained so much of their accuracy (YOLOX-Nano, in float: 36.6 mAP to 7.4).

The limits are between positions p of tensors, for scales 2^-p (config/limits.py).
"""

from __future__ import annotations

import dataclasses

from fxquant.config.limits import Grids, Kernel, Position
from fxquant.config.spec import Spec
from fxquant.config.target import REWRITES, Target
from fxquant.targets.generic import CLIPS
from fxquant.targets.x86 import CONVS, x86

_POW2 = Grids(signed=True, symmetric=True, granularity=("per_tensor",), scale="pow2")
_WEIGHTED = frozenset((*CONVS, "linear", "batch_norm"))
_HARD = frozenset(("silu_to_hardswish", "sigmoid_to_hardsigmoid"))
_POOLS = frozenset(("avg_pool", "adaptive_avg_pool", "mean"))


def npu(*, bias8: bool = False) -> Target:
    """With int32 biases at the accumulator's scale, or `bias8`: int8 with a power-of-two scale of their own."""
    base = x86(vnni=True)
    return dataclasses.replace(
        base,
        name="npu",
        kinds=base.kinds | {"batch_norm"},  # one gain and one shift per channel, as a convolution's
        tails={**base.tails, "batch_norm": CLIPS},
        activation=Spec(scale="pow2", observer="histogram"),
        weight=Spec(scale="pow2", observer="minmax"),
        bias=Spec(scale="pow2", observer="minmax") if bias8 else "int32",
        channel_scales=frozenset(),
        activations=_POW2,
        weights=_POW2,
        share=_POOLS | {"add"},
        positions=(Position(measure="cut", kinds=_WEIGHTED, low=0, high=16),),
    )


def xint8() -> Target:
    """int8 everywhere, activations round halves up. Clips, leaky relus and no other curve are inside of kernels."""
    base = npu(bias8=True)
    inside = CLIPS | {"leaky_relu", "prelu"}
    gates = frozenset(("hardsigmoid", "sigmoid"))
    leaky = frozenset(("leaky_relu",))
    return dataclasses.replace(
        base,
        name="xint8",
        kinds=(base.kinds | {"sub", "prelu"}) - (CONVS - {"conv2d", "conv_transpose2d"}) - {"gelu", "tanh"},
        tails={
            **{kind: inside for kind in base.tails if kind not in ("conv1d", "conv3d", "mul")},
            **dict.fromkeys(("avg_pool", "adaptive_avg_pool"), frozenset(("mul",))),  # by a factor near 1
        },
        activation=Spec(scale="pow2", rounding="half_up", observer="histogram"),
        weight=Spec(scale="pow2", observer="histogram"),
        residual=frozenset(),
        share=_POOLS,
        split=frozenset(("silu", "hardswish")),
        rewrites=frozenset(REWRITES) - _HARD,
        kernels=dict.fromkeys(("avg_pool", "adaptive_avg_pool"), Kernel(window=512)),
        activations=dataclasses.replace(_POW2, bits=(8,), rounding="half_up"),
        weights=dataclasses.replace(_POW2, bits=(8,)),
        biases=("int8", "int16", "int32"),
        positions=(
            *base.positions,
            Position(measure="bias", kinds=_WEIGHTED, high=15),
            Position(measure="bias_to_output", kinds=_WEIGHTED, low=-16),
            Position(measure="bias", kinds=_WEIGHTED, low=0, before=leaky),
            Position(measure="spread", kinds=frozenset(("add", "sub")), high=7),
            Position(measure="sum", kinds=frozenset(("add",)), low=-7, high=25),
            Position(measure="product", kinds=frozenset(("mul",)), low=0, high=32),
            Position(measure="product", kinds=frozenset(("mul",)), high=15, after=gates),
            Position(measure="input", kinds=frozenset(("hardsigmoid",)), low=0, high=15),
            Position(measure="output", kinds=frozenset(("hardsigmoid",)), low=7),
            Position(measure="move", kinds=frozenset(("hardsigmoid",)), low=-14, high=17),
        ),
    )


def xint8_hard() -> Target:
    """xint8 without sigmoids: hard-sigmoids stand for them."""
    base = xint8()
    return dataclasses.replace(
        base, name="xint8-hard", kinds=base.kinds - {"sigmoid", "silu"}, rewrites=base.rewrites | _HARD
    )
