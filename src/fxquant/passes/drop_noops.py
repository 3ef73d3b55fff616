"""Remove what does nothing at inference: dropout, skipped layers and identities in eval mode, casts to the same dtype.

Only for post-training flows.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from fxquant.graph.context import Context
from fxquant.graph.hooks import has_forward_hooks
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable

_STOCHASTIC_DEPTH = "torchvision.ops.stochastic_depth"  # a function that torchvision wraps: (input, p, mode, training)


def drop_noops(region: Region, context: Context) -> None:
    """Take out what does nothing at inference: dropout, identities, casts to the same dtype."""
    for node in list(region.graph.nodes):
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and _does_nothing(node, source, region, context.ops):
            inputs = node.all_input_nodes
            node.replace_all_uses_with(source)
            region.graph.erase_node(node)
            for unused in inputs:  # x.dtype in x.to(x.dtype)
                if unused.target is getattr and not unused.users:
                    region.graph.erase_node(unused)
        elif _stays_on(node, region, context.ops):
            node.meta["stays_on"] = True


def _does_nothing(node: fx.Node, source: fx.Node, region: Region, ops: OpTable) -> bool:
    if node.op == "call_function" and getattr(node.target, "__module__", "") == _STOCHASTIC_DEPTH:
        return (node.args[3] if len(node.args) > 3 else node.kwargs.get("training")) is False
    op = ops.of_node(node, region)
    if op is None:
        return False
    if op.noop and node.op == "call_module":
        module = region.get_submodule(str(node.target))
        return (isinstance(module, nn.Identity) or not module.training) and not has_forward_hooks(module)
    if not op.casts or node.meta.get("mutated"):
        return False
    before, after = tensor_info(source), tensor_info(node)
    if before is None or after is None or before.dtype != after.dtype:
        return False
    return all(map(_is_dtype, (*node.args[1:], *node.kwargs.values())))


def _stays_on(node: fx.Node, region: Region, ops: OpTable) -> bool:
    """Tell whether a node is a dropout that is on although the model is not trained, as where models are sampled."""
    op = ops.of_node(node, region)
    if op is None or not (op.noop and op.random):
        return False
    if node.op == "call_module":
        return region.get_submodule(str(node.target)).training
    return (node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)) is not False


def _is_dtype(value: object) -> bool:
    """Tell whether an argument of a cast says a dtype, or nothing; it might say a device or a memory format."""
    if isinstance(value, fx.Node):
        return tensor_info(value) is not None or value.args[1:] == ("dtype",)
    return value is None or isinstance(value, (torch.dtype, bool))
