"""The weights of a decided graph as they are stored if nothing else happens: rounded to the nearest, or as fixed."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.algorithms.weighted_op import weighted_ops
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_range import quantize_weight


@torch.no_grad()
def rounded(region: Region, context: Context) -> dict[str, dict[str, Tensor]]:
    """By the path of the module; those that were fixed round by themselves."""
    found: dict[str, dict[str, Tensor]] = {}
    for op in weighted_ops(region, context):
        path = str(op.node.target)
        if path not in found and type(op.module) is not QatBlock:
            weight = op.weight.detach()
            integers, scale, zero_point = quantize_weight(weight, op.spec, f"{path}.weight")
            found[path] = {"weight": dequantize(integers, scale, zero_point, op.spec).to(weight.dtype)}
    return found
