"""For training: let the node of an op stand for the batch norm after it, which stays a module of its own.

The same pairs as in `fold_bn`, so that everything after sees the same graph. `meta["norm"]` of the op is the path of
its batch norm; `insert_blocks` makes one block of the two.
"""

from __future__ import annotations

from fxquant.graph.context import Context
from fxquant.graph.region import Region, preparation_of
from fxquant.passes.fold_bn import find_pairs, take_over


def pair_bn(region: Region, context: Context) -> None:
    """Take the batch norms that can be folded out of the graph."""
    for producer, node in find_pairs(region, context):
        producer.meta["norm"] = str(node.target)
        take_over(region, producer, node)
    preparation_of(region).fused = True
