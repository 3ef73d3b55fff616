"""x86 CPUs: u8 activations, s8 weights per output channel.

With VNNI all 8 bits of both are safe, and in native code, which sums them exactly on every CPU. Other kernels, torch's
among them, sum pairs of products in saturating int16 without VNNI, so weights for them keep to 64: 2 * 255 * 64 fits,
2 * 255 * 127 does not. Weights, with a scale per channel, have the bit to spare sooner than activations: ResNet-20 is
31.6 dB from float with 7 bits for weights, 27.8 with 7 for activations, 33.2 with 8 for both.
"""

from __future__ import annotations

from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.cpu import cpu, makes_code

CONVS = frozenset(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"))
_FOLLOW = (
    *("add", "mul", "mean", "avg_pool", "adaptive_avg_pool", "max_pool", "interpolate"),
    *("relu", "clamp", "leaky_relu", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh"),
    *("cat", "stack", "pad", "pixel_shuffle", "reshape", "permute", "squeeze", "slice", "split", "expand"),
    *("identity", "dropout"),
)
_TAILS = frozenset(("relu", "clamp", "leaky_relu", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh"))


def x86(*, vnni: bool | None = None, name: str = "x86") -> Target:
    """Return the target of the default engine on this machine, or for one with or without VNNI.

    AMX has VNNI's grids.
    """
    limits = None if ((cpu().vnni or makes_code()) if vnni is None else vnni) else (-64, 64)
    return Target(
        name=name,
        kinds=frozenset((*CONVS, "linear", "embedding", *_FOLLOW)),
        activation=Spec(signed=False, symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", observer="minmax", limits=limits),
        tails={
            **dict.fromkeys((*CONVS, "linear"), _TAILS),
            **dict.fromkeys(("add", "mul"), frozenset(("relu", "clamp"))),
        },
        residual=frozenset((*CONVS, "linear")),
        channel_scales=frozenset(("conv1d", "conv2d", "conv3d")),
    )


def onednn() -> Target:
    """Return the target of torch's kernels on this machine."""
    return x86() if cpu().vnni else x86(vnni=False, name="x86-avx2")
