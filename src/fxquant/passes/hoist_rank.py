"""Ask for the rank of a tensor as early as possible: `conv(x).dim()` is `x.dim()`.

Libraries check the rank of what they are given (`if x.dim() != 4: raise`), which leaves a reader on a tensor between
two ops that would otherwise be one kernel. Walking up through ops that keep the rank moves it out of the way.
"""

from __future__ import annotations

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable, activation_nodes

_KEEPS_RANK = frozenset(
    (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"),
        *("batch_norm", "layer_norm", "group_norm", "instance_norm", "dropout", "identity"),
        *("relu", "clamp", "leaky_relu", "elu", "hardswish", "silu", "mish", "gelu", "sigmoid", "hardsigmoid", "tanh"),
        *("softmax", "max_pool", "avg_pool", "adaptive_avg_pool", "interpolate", "pad", "cat"),
    )
)


def hoist_rank(region: Region, ops: OpTable = OPS) -> Region:
    """Move every `dim()` and `ndim` up through the ops that keep the rank."""
    for node in region.graph.nodes:
        reads = node.target in ("dim", "ndimension") if node.op == "call_method" else node.target is getattr
        if not reads or (node.op == "call_function" and node.args[1] != "ndim"):
            continue
        source = node.args[0]
        while isinstance(source, fx.Node) and (earlier := _same_rank(region, source, ops)) is not None:
            source = earlier
        node.args = (source, *node.args[1:])
    region.recompile()
    return region


def _same_rank(region: Region, node: fx.Node, ops: OpTable) -> fx.Node | None:
    op = ops.of_node(node, region)
    operands = activation_nodes(node, op) if op is not None and op.kind in _KEEPS_RANK else []
    return operands[0] if operands else None
