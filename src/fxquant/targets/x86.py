"""x86 CPUs with oneDNN kernels: u8 activations, s8 weights per output channel.

With VNNI the full 8 bits of an activation are safe. Without it, pairs of products are summed in saturating int16, so
activations keep to 7 bits: 2 * 127 * 127 fits, 2 * 255 * 127 does not.
"""

from __future__ import annotations

from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.cpu import cpu

CONVS = frozenset(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"))
_FOLLOW = (
    *("add", "mul", "mean", "avg_pool", "adaptive_avg_pool", "max_pool", "interpolate"),
    *("relu", "clamp", "leaky_relu", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh"),
    *("cat", "stack", "pad", "pixel_shuffle", "reshape", "permute", "squeeze", "slice", "split", "expand"),
    *("identity", "dropout"),
)
_TAILS = frozenset(("relu", "clamp", "leaky_relu", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh"))


def x86(*, vnni: bool | None = None, name: str = "x86") -> Target:
    """The target for this machine, or for one with or without VNNI. AMX has VNNI's grids."""
    bits = 8 if (cpu().vnni if vnni is None else vnni) else 7
    return Target(
        name=name,
        kinds=frozenset((*CONVS, "linear", "embedding", *_FOLLOW)),
        activation=Spec(bits=bits, signed=False, symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", observer="minmax"),
        tails={
            **dict.fromkeys((*CONVS, "linear"), _TAILS),
            **dict.fromkeys(("add", "mul"), frozenset(("relu", "clamp"))),
        },
        residual=frozenset((*CONVS, "linear")),
        channel_scales=frozenset(("conv1d", "conv2d", "conv3d")),
    )
