"""The bias of a converted op: in float, in a few bits with a scale of its own, or as int32.

int32    q = round(b / (s_x s_w))          one step per output channel, as an int8 kernel's accumulator has them
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from fxquant.core.graph import Region
from fxquant.core.ops import Op, activation_nodes
from fxquant.core.spec import Int32, Spec
from fxquant.numerics.affine import choose_qparams, quantize, round_to
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.ranges import tensor_range


def convert_bias(
    bias: object, bias_spec: Spec | Int32 | None, weight_scale: Tensor, spec: Spec, x_scale: Tensor | None
) -> dict[str, Tensor | None]:
    """The buffers by name: `bias`, and its scale and zero point if it is integers.

    Without a scale for the input (dynamic, weight-only) or with several per channel, an int32 bias stays in float.
    """
    if not isinstance(bias, Tensor):
        return {"bias": None}
    values = bias.detach().float()
    if isinstance(bias_spec, Spec):
        scale, zero_point = choose_qparams(*tensor_range(values, bias_spec), bias_spec)
        return {
            "bias": quantize(values, scale, zero_point, bias_spec),
            "bias_scale": scale,
            "bias_zero_point": zero_point,
        }
    if bias_spec is None or x_scale is None or spec.granularity == "per_group":
        return {"bias": bias.detach().clone()}
    # a grouped transposed conv has the same weight channels in each group
    per_channel = weight_scale.repeat(len(values) // len(weight_scale)) if weight_scale.dim() else weight_scale
    # in float64: 2^31 steps need more than float32 has
    step = (x_scale.double() * per_channel.double()).expand(values.shape)
    limits = torch.iinfo(torch.int32)
    levels = round_to(values.double() / step, spec.rounding).clamp(limits.min, limits.max)
    zeros = torch.zeros_like(step, dtype=torch.int32)
    return {"bias": levels.to(torch.int32), "bias_scale": step.float(), "bias_zero_point": zeros}


def input_scale(region: Region, node: fx.Node, op: Op) -> Tensor | None:
    """The scale of the first operand of a node, if that is quantized with a fixed one."""
    operand = activation_nodes(node, op)[0] if op.operands else None
    if operand is None or operand.op != "call_module":
        return None
    quantizer = region.get_submodule(str(operand.target))
    if not isinstance(quantizer, FakeQuant) or quantizer.spec.dynamic or not quantizer.has_range:
        return None
    return quantizer.compute_qparams()[0]
