"""A QDQ graph in the form that ExecuTorch's XNNPACK partitioner takes whole.

dequantize(q) with several users      ->  one for each: else the graph falls into many delegates
dequantize_per_channel(w, s, None)    ->  with a tensor of zeros, which it asks for
"""

from __future__ import annotations

import torch
from torch import fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region, regions


def fit_xnnpack(tree: nn.Module) -> None:
    """Rewrite the graphs of a reference model, in place."""
    for _, region in regions(tree):
        for node in list(region.graph.nodes):
            if node.target is torch_compat.DEQUANTIZE_CHANNEL and node.args[2] is None:
                _give_zeros(region, node)
            if node.target in torch_compat.DEQUANTIZE_OPS:
                _part(region.graph, node)
        region.recompile()


def _give_zeros(region: Region, node: fx.Node) -> None:
    scale = node.args[1]
    assert isinstance(scale, fx.Node)
    zeros = torch.zeros_like(get_attr(region, str(scale.target)), dtype=torch.int64)
    name = f"{node.name}_zero_points"
    region.register_buffer(name, zeros, persistent=False)
    with region.graph.inserting_before(node):
        node.update_arg(2, region.graph.get_attr(name))


def _part(graph: fx.Graph, node: fx.Node) -> None:
    for user in list(node.users)[1:]:
        with graph.inserting_before(user):
            own = graph.node_copy(node)
        user.replace_input_with(node, own)
