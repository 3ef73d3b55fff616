"""Choose the integers of one weight by the second moments of its inputs, and let the bias take what moves the mean.

cost(Q) = tr((W - Q) H (W - Q)^T)       H: the mean of x x^T in calibration, centered where a bias takes the mean
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fxquant.algorithms.fix_weight import fix_weight
from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.config.spec import Spec
from fxquant.graph.notes import remark
from fxquant.graph.region import Region
from fxquant.numerics.affine import broadcast_qparam, dequantize, fake_quantize, split_groups
from fxquant.numerics.weights.weight_range import find_weight_qparams

Chosen = tuple[Tensor, Tensor]  # integers and scale
# (weight, H of each group of channels, scale, zero point, spec) -> what is chosen
Choose = Callable[[Tensor, Tensor, Tensor, Tensor, Spec], Chosen]


@torch.no_grad()
def round_by(region: Region, op: WeightedOp, second: Tensor, mean: Tensor, choose: Choose, by: str) -> None:
    """Fix the integers of a weight for inputs with these moments per group; `by` is who does, for the Decision."""
    weight = op.weight.detach().float()
    scale, zero_point = find_weight_qparams(weight, op.spec, f"{op.node.target}.weight")
    bias = getattr(op.module, "bias", None)
    if bias is not None:
        second = second - mean.unsqueeze(2) * mean.unsqueeze(1)
    second = second.to(weight.device)
    nearest = cost(weight - fake_quantize(weight, scale, zero_point, op.spec), second)
    integers, scale = choose(weight, second, scale, zero_point, op.spec)
    lost = weight - dequantize(integers, scale, zero_point, op.spec)
    if bias is not None:
        rows = lost.view(len(mean), -1, mean.shape[1]) @ mean.to(lost).unsqueeze(2)
        moved = bias.detach() + rows.flatten().to(bias.dtype)
        op.module.bias = nn.Parameter(moved, requires_grad=bias.requires_grad)
    fix_weight(region, op, integers, scale, zero_point)
    before, after = float(nearest.sum()), float(cost(lost, second).sum())
    if before > 0 and after > 0:
        remark(op.node, f"{by}: {10 * math.log10(before / after):+.1f} dB at its output beside the nearest integers")


def cost(lost: Tensor, second: Tensor) -> Tensor:
    """What each row of a weight loses at its output, by group: (groups, rows)."""
    rows = lost.reshape(len(second), -1, second.shape[1]).to(second.dtype)
    return ((rows @ second) * rows).sum(-1)


def spread(qparam: Tensor, weight: Tensor, spec: Spec) -> Tensor:
    """A scale or zero point for every element of a weight."""
    grouped = split_groups(weight, spec)
    return broadcast_qparam(qparam, grouped, spec).expand(grouped.shape).reshape(weight.shape)
