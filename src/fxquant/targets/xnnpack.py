"""XNNPACK, as ExecuTorch hands graphs to it.

Each pattern is dequantize, op, perhaps a clip, quantize: a kernel always writes integers, the last one too. What is not
among the kinds runs in fp32 there.
"""

from __future__ import annotations

from fxquant.config.limits import Grids, Kernel, Shapes
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.generic import CLIPS

_WEIGHTED = ("conv1d", "conv2d", "conv_transpose2d", "linear")
_OTHERS = (
    *("add", "sub", "mul", "cat", "max_pool", "mean", "reshape", "permute", "squeeze", "slice", "relu", "clamp"),
    *("identity", "dropout"),
)


def xnnpack() -> Target:
    """s8 activations with a zero point, weights [-127, 127] per channel, a float bias."""
    return Target(
        name="xnnpack",
        kinds=frozenset((*_WEIGHTED, *_OTHERS)),
        activation=Spec(symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", limits=(-127, 127), observer="minmax"),
        tails={**dict.fromkeys(_WEIGHTED, CLIPS), "add": frozenset(("relu",))},
        integer_outputs=True,
        activations=Grids(bits=(8,), signed=True, granularity=("per_tensor",), rounding="half_even"),
        weights=Grids(
            bits=(8,), signed=True, symmetric=True, granularity=("per_tensor", "per_channel"), ends=(-127, 127)
        ),
        biases=("float",),
        kernels={
            "conv_transpose2d": Kernel(one_group=True),
            "max_pool": Kernel(shapes=Shapes(ranks=(4,))),
            "mean": Kernel(shapes=Shapes(ranks=(4,)), axes=(2, 3)),
        },
    )
