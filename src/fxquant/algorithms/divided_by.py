"""Whether code behind an op may divide by what the op makes, so that zeros must stay zeros.

Swin V2 zeroes the biases of keys and divides keys by their norm. For the zeros of a padded window that gives zero;
with a tiny bias a padded key would point anywhere.
"""

from __future__ import annotations

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region, origin_of
from fxquant.ops.table import Role, argument
from fxquant.passes.find_quantizer import quantizer_of


def may_divide_by(region: Region, context: Context, node: fx.Node) -> bool:
    """Tell whether a tensor is divided by, or goes to code that nothing is known of, before the next product."""
    seen, left = {node}, [node]
    while left:
        source = left.pop()
        for user in source.users:
            op = context.ops.of_node(user, region)
            if user.op == "output" and origin_of(region).path:
                return True  # to code that is no part of a graph
            if user.op == "output" or user in seen or reads_size(user) or (op is not None and op.role is Role.COMPUTE):
                continue
            if op is None and quantizer_of(region, user) is None:
                return True
            if op is not None and op.divides and argument(user, op, 1) is source:
                return True
            seen.add(user)
            left.append(user)
    return False
