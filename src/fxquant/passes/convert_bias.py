"""The bias of a converted op: in float, in a few bits with a scale of its own, or as int32.

int32    q = round(b / (s_x s_w))          one step per output channel, as an int8 kernel's accumulator has them

Which of these it is follows from the specs alone, so that a state_dict fits whatever the data was: where the input has
no grid (numerics/grid.py), an int32 bias has a step of its own, and where that is not known yet, none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from fxquant.config.spec import Int32, Spec
from fxquant.graph.region import Region
from fxquant.graph.rounding import round_to
from fxquant.numerics.affine import MIN_SCALE, choose_qparams, quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.grid import NO_DATA
from fxquant.numerics.ranges import given_or_own_range
from fxquant.ops.table import Op, activation_nodes


def convert_bias(
    bias: object, bias_spec: Spec | Int32 | None, weight_scale: Tensor, spec: Spec, x_scale: Tensor | None
) -> dict[str, Tensor | None]:
    """Return the buffers by name: `bias`, and its scale and zero point if it is integers.

    Without a scale for the input (dynamic, weight-only), an int32 bias stays in float.
    """
    if not isinstance(bias, Tensor):
        return {"bias": None}
    values = bias.detach().float()
    if isinstance(bias_spec, Spec):
        scale, zero_point = choose_qparams(*given_or_own_range(values, bias_spec), bias_spec)
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
    if bool((x_scale == NO_DATA).any()):
        step = (values.abs().max().double() / 2**30).clamp(min=MIN_SCALE).expand(values.shape)
    limits = torch.iinfo(torch.int32)
    levels = round_to(values.double() / step, spec.rounding).nan_to_num().clamp(limits.min, limits.max)
    zeros = torch.zeros_like(step, dtype=torch.int32)
    return {"bias": levels.to(torch.int32), "bias_scale": step.float(), "bias_zero_point": zeros}


def with_room(scale: Tensor, bias: object, spec: Spec, x_scale: Tensor | None) -> Tensor:
    """Return the scale of a weight, coarser where it is so fine that an int32 bias would not fit.

    Such a channel has tiny weights beside its bias: what their rounding loses is below 1e-7 of it for each input.
    """
    if not isinstance(bias, Tensor) or x_scale is None or spec.granularity == "per_group":
        return scale
    needed = bias.detach().double().abs() / (0.99 * torch.iinfo(torch.int32).max * x_scale.double())
    needed = needed.view(-1, *scale.shape).amax(0) if scale.dim() else needed.max()
    if not bool((needed > scale).any()):
        return scale
    if spec.scale == "pow2":
        needed = needed.clamp_min(MIN_SCALE).log2().ceil().exp2()
    return torch.maximum(scale, needed.to(scale))


def input_scale(region: Region, node: fx.Node, op: Op, waiting: bool) -> Tensor | None:
    """Return the scale of the first operand of a node, if that is quantized with a fixed one; see numerics/grid.py.

    Of one with a scale for each channel, that of the channel which each output of a depthwise convolution reads, else
    None: a sum over channels has no scale.
    """
    operand = activation_nodes(node, op)[0] if op.operands else None
    if operand is None or operand.op != "call_module":
        return None
    quantizer = region.get_submodule(str(operand.target))
    if not isinstance(quantizer, FakeQuant) or quantizer.spec.dynamic:
        return None
    if not quantizer.has_range:
        return torch.tensor(math.nan if waiting else NO_DATA)
    scale = quantizer.compute_qparams()[0]
    if not scale.dim():
        return scale
    weight = region.get_submodule(str(node.target)).weight
    if not isinstance(weight, Tensor) or weight.shape[1] != 1 or len(weight) % len(scale):
        return None
    return scale.repeat_interleave(len(weight) // len(scale))
