"""Integers that an algorithm chose for a weight, instead of the nearest ones: for AdaRound, GPTQ and their like."""

from __future__ import annotations

from torch import Tensor, nn

from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.graph.notes import note_of
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant


def fix_weight(region: Region, op: WeightedOp, integers: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    """Let the weight of an op be stored as these integers on this grid, of the form that `op.spec` asks for.

    For the hook `apply`. All calls of the module go with it; another module with the same weight keeps its own.
    """
    values = dequantize(integers, scale, zero_point, op.spec).to(op.weight.dtype)
    op.module.weight = nn.Parameter(values, requires_grad=op.weight.requires_grad)
    note = note_of(op.node)
    assert note is not None
    grid = WeightFakeQuant(op.spec, f"{op.node.target}.weight", op.weight.shape)
    grid.fix(scale, zero_point)
    set_submodule(region, str(op.node.target), QatBlock(op.module, grid, None, note.bias))
