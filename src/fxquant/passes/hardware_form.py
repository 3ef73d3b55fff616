"""What the passes share that bring ops into the form of the hardware: when they apply, and how an op is replaced.

They run in PREPARE, where the target is known, so that calibration and training see what the device will compute. A
target names those that it asks for (`Target.rewrites`). Each op that changes says so in its Decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from torch import fx
from torch.fx.node import Argument

from fxquant.graph.context import Context
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.ops.table import Op
from fxquant.passes.candidates import choice_of


def to_rewrite(region: Region, context: Context, name: str, kinds: tuple[str, ...]) -> Iterator[tuple[fx.Node, Op]]:
    """Yield the ops that a pass of this name is about: static int8 by their rule, on a target that asks for it."""
    if context.target is None or name not in context.target.rewrites:
        return
    for node in list(region.graph.nodes):
        op = context.ops.of_node(node, region)
        if op is not None and op.kind in kinds and is_static(node) and not node.meta.get("mutated"):
            yield node, op


def is_static(node: fx.Node) -> bool:
    """Tell whether the rule of an op asks for integers whose scales are found beforehand."""
    choice = choice_of(node)
    qconfig = choice.qconfig if choice is not None else None
    return qconfig is not None and qconfig.activation is not None and not qconfig.is_dynamic


def call(
    node: fx.Node, function: Callable[..., object], *args: Argument, shape: tuple[int, ...] | None = None
) -> fx.Node:
    """Return a call in the place of a node, by its rule; `shape` is that of its result, if it is another."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(function, args)
    made.meta.update(
        {key: node.meta[key] for key in ("scope", "where", "tensor", "choice", "rewritten") if key in node.meta}
    )
    info = made.meta.get("tensor")
    if shape is not None and isinstance(info, TensorInfo):
        made.meta["tensor"] = dataclasses.replace(info, shape=shape)
    return made


def replace(node: fx.Node, result: fx.Node, rewrite: Rewrite) -> None:
    """Let `result` stand for a node, which goes; its Decision will say why."""
    note_rewrite(result, rewrite)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def note_rewrite(node: fx.Node, rewrite: Rewrite) -> None:
    """Keep what was done to an op until its Decision is written."""
    node.meta["rewritten"] = (*node.meta.get("rewritten", ()), rewrite)
