"""ONNX Runtime on x86 CPUs: as x86, in the forms that its QLinear kernels are made from."""

from __future__ import annotations

import dataclasses

from fxquant.config.target import Target
from fxquant.targets.cpu import cpu
from fxquant.targets.generic import clip_tails
from fxquant.targets.x86 import x86


def onnxruntime(*, vnni: bool | None = None) -> Target:
    """Every add has int8 operands of its own, a conv writes int8 before any curve, and silu is a sigmoid and a mul.

    Biases are int32, as its kernels take them: with float ones, one value in a thousand was a step off in the file.
    Attention is two int8 products with a float softmax between them: its int8 kernel for softmaxes takes three to six
    times as long as the float one with a rounding behind it.

    Its int8 convolutions write integers only. One that float ops read (patches of a ViT, depthwise ones before layer
    norms) would run in float.
    """
    base = x86(vnni=cpu().vnni if vnni is None else vnni)
    return dataclasses.replace(
        base,
        name="onnxruntime",
        kinds=base.kinds | {"matmul"},
        bias="int32",
        tails=clip_tails(base.tails),
        residual=frozenset(),
        split=frozenset(("silu", "attention")),
        rounded_outputs=frozenset(("conv1d", "conv2d", "conv3d")),
        clear_ties=True,
    )
