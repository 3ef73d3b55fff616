"""Zero points of weights, written out: compilers ask for a tensor of them.

dequantize_per_channel(w, s, None)    ->  with a tensor of zeros
"""

from __future__ import annotations

import torch
from torch import fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region, regions


def write_zero_points(tree: nn.Module) -> None:
    """Rewrite the graphs of a reference model, in place. The numbers that they give stay the same."""
    for _, region in regions(tree):
        for node in region.graph.find_nodes(op="call_function", target=torch_compat.DEQUANTIZE_CHANNEL):
            if node.args[2] is None:
                _give_zeros(region, node)
        region.recompile()


def _give_zeros(region: Region, node: fx.Node) -> None:
    scale = node.args[1]
    assert isinstance(scale, fx.Node)
    zeros = torch.zeros_like(get_attr(region, str(scale.target)), dtype=torch.int64)
    name = f"{node.name}_zero_points"
    region.register_buffer(name, zeros, persistent=False)
    with region.graph.inserting_before(node):
        node.update_arg(2, region.graph.get_attr(name))
