"""Ask the rules about every call of a graph, once; `meta["choice"]` holds what they answer.

It is asked on the graph as the user wrote it, before a target splits ops or forms kernels, so one answer serves every
target. What comes later reads the answers only: rules may be callables that no copy or pickle can carry.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.mapping import Rules
from fxquant.core.ops import OPS, OpTable
from fxquant.passes.candidates import is_left_alone, sites


def choose(region: Region, rules: Rules, ops: OpTable = OPS) -> Region:
    """Write the winning rule, with its qconfig, on every call."""
    for node, site in sites(region, ops).items():
        node.meta["choice"] = rules.choose(site)
    return region


def fusion_allowed(region: Region, rules: Rules, ops: OpTable = OPS) -> Callable[[fx.Node], bool]:
    """Whether the rules let a node be merged with another one: a rule with None forbids it."""
    known = sites(region, ops)

    def allowed(node: fx.Node) -> bool:
        return rules.choose(known[node]).qconfig is not None and not is_left_alone(node, region)

    return allowed
