"""Remove what does nothing at inference: dropout in eval mode and `nn.Identity`. Only for post-training flows."""

from __future__ import annotations

from torch import fx, nn

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable


def drop_noops(region: Region, ops: OpTable = OPS) -> Region:
    """Route the users of dropout and identity modules to their input."""
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is None or node.op != "call_module" or op.kind not in ("dropout", "identity"):
            continue
        module, source = region.get_submodule(str(node.target)), node.args[0] if node.args else None
        if isinstance(source, fx.Node) and (isinstance(module, nn.Identity) or not module.training):
            node.replace_all_uses_with(source)
            region.graph.erase_node(node)
    region.recompile()
    return region
