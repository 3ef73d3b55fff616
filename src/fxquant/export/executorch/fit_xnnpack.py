"""A QDQ graph in the form that ExecuTorch's XNNPACK partitioner takes whole.

dequantize(q) with several users      ->  one for each: else the graph falls into many delegates
dequantize_per_channel(w, s, None)    ->  with a tensor of zeros (zero_points.py)
"""

from __future__ import annotations

from torch import fx, nn

from fxquant.export.zero_points import write_zero_points
from fxquant.graph import torch_compat
from fxquant.graph.region import regions


def fit_xnnpack(tree: nn.Module) -> None:
    """Rewrite the graphs of a reference model, in place."""
    write_zero_points(tree)
    for _, region in regions(tree):
        for node in list(region.graph.nodes):
            if node.target in torch_compat.DEQUANTIZE_OPS:
                _part(region.graph, node)
        region.recompile()


def _part(graph: fx.Graph, node: fx.Node) -> None:
    for user in list(node.users)[1:]:
        with graph.inserting_before(user):
            own = graph.node_copy(node)
        user.replace_input_with(node, own)
