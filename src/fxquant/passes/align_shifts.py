"""Keep the shifts of power-of-two hardware inside what it has.

    shift = log2(s_y / (s_x s_w))          from the accumulator of a weighted op to its output

Where a shift lies outside of the region's `shift` range, the scale of the weight moves: coarser, where the accumulator
would have to be shifted left; finer, where too many of its places would be shifted out. Runs on frozen graphs.
"""

from __future__ import annotations

import math

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.plan import note_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.qat_block import QatBlock
from fxquant.passes.convert import quantizer_of


def align_shifts(region: Region, ops: OpTable = OPS) -> Region:
    """Move the weight scales that lead to impossible shifts."""
    if region._region.shift is None:
        return region
    least, most = region._region.shift
    for node in region.graph.nodes:
        op, note = ops.of_node(node, region), note_of(node)
        if op is None or note is None or note.weight is None or note.weight.scale != "pow2":
            continue
        block, operands = region.get_submodule(str(node.target)), activation_nodes(node, op)
        before = quantizer_of(region, operands[0]) if operands else None
        after = _output_quantizer(region, node)
        if type(block) is not QatBlock or not _is_pow2(before) or not _is_pow2(after):
            continue
        assert before is not None and after is not None
        ratio = math.log2(float(after.scale)) - math.log2(float(before.scale))
        shifts = ratio - block.weight_fq.scale.log2()
        block.weight_fq.scale = block.weight_fq.scale * (shifts - shifts.clamp(least, most)).exp2()
    return region


def _is_pow2(quantizer: FakeQuant | None) -> bool:
    return quantizer is not None and quantizer.state == "frozen" and quantizer.spec.scale == "pow2"


def _output_quantizer(region: Region, node: fx.Node) -> FakeQuant | None:
    """The quantizer that ends the node's group."""
    note = note_of(node)
    while note is not None:
        found = [quantizer for user in node.users if (quantizer := quantizer_of(region, user)) is not None]
        if found:
            return found[0]
        inside = [user for user in node.users if (other := note_of(user)) is not None and other.group == note.group]
        if len(inside) != 1:
            return None
        node = inside[0]
    return None
