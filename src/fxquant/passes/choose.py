"""Ask the rules about every call of a graph, once; `meta["choice"]` holds what they answer.

It is asked on the graph as the user wrote it, before a target splits ops or forms kernels, so one answer serves every
target. What comes later reads the answers only: rules may be callables that no copy or pickle can carry.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.passes.candidates import is_left_alone, sites


def see_ops(region: Region, context: Context) -> None:
    """Show the rules every op of the graph, so that one about an op which later passes take out has matched."""
    if context.rules is not None:
        context.rules.see(sites(region, context.ops).values())


def choose(region: Region, context: Context) -> None:
    """Write the winning rule, with its qconfig, on every call. Without rules, the answers of before stand."""
    if context.rules is None:
        return
    for node, site in sites(region, context.ops).items():
        node.meta["choice"] = context.rules.choose(site)


def fusion_allowed(region: Region, context: Context) -> Callable[[fx.Node], bool]:
    """Tell whether the rules let a node be merged with another one: a rule with None forbids it."""
    known, rules = sites(region, context.ops), context.rules

    def allowed(node: fx.Node) -> bool:
        if rules is None:
            return True
        return rules.choose(known[node]).qconfig is not None and not is_left_alone(node, region)

    return allowed
