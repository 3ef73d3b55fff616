"""Biases that a model stores as integers, written as such: DequantizeLinear of the integers with their own scale.

    (rows - zero) * scale    ->    dequantize(rows, scale, zero)

Runtimes fold the first form into a float, and int32_bias.py would round that to other steps. 16 bits become 32, which
all opsets have.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region, regions
from fxquant.passes.convert_weights import dequantize_rows


def keep_own_biases(tree: nn.Module) -> None:
    """Rewrite the biases of a reference model's graphs, in place."""
    for _, region in regions(tree):
        for node in [node for node in region.graph.nodes if node.target is dequantize_rows]:
            _rewrite(region, node)
        region.recompile()


def _rewrite(region: Region, node: fx.Node) -> None:
    rows, scale, zero, group, dtype = node.args
    reads = [each for each in (rows, scale, zero) if isinstance(each, fx.Node) and each.op == "get_attr"]
    if len(reads) != 3 or group is not None or dtype is not torch.float32:
        return
    integers, step, start = (get_attr(region, str(each.target)) for each in reads)
    if not isinstance(integers, Tensor) or integers.dim() != 1 or integers.dtype not in _WIDE:
        return
    low, high = torch.iinfo(_WIDE[integers.dtype]).min, torch.iinfo(_WIDE[integers.dtype]).max
    with region.graph.inserting_before(node):
        if _WIDE[integers.dtype] is not integers.dtype:
            region.register_buffer(f"{node.name}_wide", integers.to(_WIDE[integers.dtype]), persistent=False)
            rows = region.graph.get_attr(f"{node.name}_wide")
        ends = (low, high, _WIDE[integers.dtype])
        if step.dim() == 0:
            made = region.graph.call_function(torch_compat.DEQUANTIZE, (rows, float(step), int(start), *ends))
        else:
            made = region.graph.call_function(torch_compat.DEQUANTIZE_CHANNEL, (rows, scale, zero, 0, *ends))
    node.replace_all_uses_with(made)
    region.graph.erase_node(node)


_WIDE = {torch.int8: torch.int8, torch.int16: torch.int32, torch.int32: torch.int32}
