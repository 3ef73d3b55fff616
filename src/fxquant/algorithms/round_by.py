"""Choose the integers of one weight by the second moments of its inputs, and let the bias take what moves the mean.

cost(Q) = tr((W - Q) H (W - Q)^T)       H: the mean of x x^T in calibration, centered where a bias takes the mean

A bias of a few bits takes little: E|(W - Q) x + b - b_q|^2 is the same with V - Q in place of W - Q, for H that is not
centered and V = W + (b - b_q) H^-1 E[x]. So weights make up for what the bias loses, as far as inputs have a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fxquant.algorithms.bias_grid import bias_grid
from fxquant.algorithms.fix_weight import fix_weight
from fxquant.algorithms.shift_bias import shifted, takes_means
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
    bias, wanted = getattr(op.module, "bias", None), weight
    grid = None if bias is None else bias_grid(op, bias)
    if bias is not None and grid is not None:
        grid.fix(op)
        lost = bias.detach().float() - grid.rounded(bias).float()
        wanted = weight + _made_up(lost, second, mean).reshape(weight.shape).to(weight)
    elif takes_means(op):
        second = second - mean.unsqueeze(2) * mean.unsqueeze(1)
    second = second.to(weight.device)
    told = second.float()  # by which the account is made
    nearest = cost(wanted - fake_quantize(weight, scale, zero_point, op.spec), told)
    integers, scale = choose(wanted, second, scale, zero_point, op.spec)
    made = dequantize(integers, scale, zero_point, op.spec)
    if bias is not None:
        rows = (weight - made).reshape(len(mean), -1, mean.shape[1]) @ mean.to(weight).unsqueeze(2)
        moved = shifted(bias, rows.flatten(), keep_zeros=op.keeps_zeros)
        op.module.bias = nn.Parameter(moved, requires_grad=bias.requires_grad)
    fix_weight(region, op, integers, scale, zero_point)
    lost = wanted - made
    before, after = float(nearest.sum()), float(cost(lost, told).sum())
    if before > 0 and after > 0:
        remark(op.node, f"{by}: {10 * math.log10(before / after):+.1f} dB at its output beside the nearest integers")


def _made_up(lost: Tensor, second: Tensor, mean: Tensor) -> Tensor:
    """Return what weights take of a loss of each bias, (groups, rows, features)."""
    damping = 0.01 * second.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-30)
    eye = torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
    per_unit: Tensor = torch.linalg.solve(second + damping.view(-1, 1, 1) * eye, mean)
    return lost.to(second).view(len(mean), -1, 1) * per_unit.unsqueeze(1)


def cost(lost: Tensor, second: Tensor) -> Tensor:
    """Return what each row of a weight loses at its output, by group: (groups, rows)."""
    rows = lost.reshape(len(second), -1, second.shape[1]).to(second.dtype)
    return ((rows @ second) * rows).sum(-1)


def spread(qparam: Tensor, weight: Tensor, spec: Spec) -> Tensor:
    """Return a scale or zero point for every element of a weight."""
    grouped = split_groups(weight, spec)
    return broadcast_qparam(qparam, grouped, spec).expand(grouped.shape).reshape(weight.shape)
