"""Weights and biases that forward computes from parameters alone: computed once, in eval mode.

    conv2d(x, standardize(get_attr conv.weight), ...)          ->    conv2d(x, get_attr conv.weight, ...)
    linear(x, get_attr qkv.weight, cat([q_bias, 0, v_bias]))   ->    linear(x, get_attr qkv.weight, get_attr qkv.bias)

The value takes the place of the parameter in the module whose op it is, so that the call can be lifted. It may
be built in place, `bias = bias.clone(); bias[a:b].zero_()`, if all that is written follows from parameters too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from fxquant.capture.canonical.alias import AliasSets
from fxquant.capture.canonical.functionalize import written_by
from fxquant.capture.canonical.stock import RECIPES
from fxquant.graph.nodes import scope_path
from fxquant.graph.paths import free_path, get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import Op, OpTable, argument


def compute_weights(region: Region, ops: OpTable) -> Region:
    """Fold what weighted functions get as weight and bias. In train mode nothing is folded: weights still change."""
    if region.training:
        return region
    writes = {node: target for node in region.graph.nodes if (target := written_by(node)) is not None}
    sets = AliasSets(region.graph, region, ops, writes)
    constant = _constants(region, ops, writes, sets)
    for node in list(region.graph.nodes):
        op = ops.of(node.target) if node.op == "call_function" else None
        if op is None or not op.has_weight or op.kind not in RECIPES:
            continue
        for name in ("weight", "bias"):
            source = argument(node, op, op.params.index(name)) if name in op.params else None
            if isinstance(source, fx.Node) and source in constant and source.op != "get_attr":
                _fold(region, node, op, name, _Computed(source, node, writes, sets), constant)
    _drop_unread(region.graph, constant, writes, sets)
    return region


@dataclass(frozen=True, slots=True)
class _Computed:
    """A value that follows from parameters alone, as one node reads it."""

    source: fx.Node
    reader: fx.Node
    writes: dict[fx.Node, fx.Node]
    sets: AliasSets

    def steps(self) -> set[fx.Node]:
        """Return the nodes that make the value.

        They are what it is computed from, and writes to memory of these until it is read.
        """
        found, pending = {self.source}, [self.source]
        while pending:
            node = pending.pop()
            writes = [other for other in self.sets.of(node) if other in self.writes and other < self.reader]
            for other in (*node.all_input_nodes, *writes):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return found


def _constants(region: Region, ops: OpTable, writes: dict[fx.Node, fx.Node], sets: AliasSets) -> set[fx.Node]:
    """Nodes whose value follows from parameters and buffers that nothing changes, and memory that only they share."""
    left_out: set[fx.Node] = set()
    while True:
        found = _follow(region, ops, writes, left_out)
        built = [node for node in found if node.meta.get("mutated") or node in writes]
        bad = {node for node in built if not all(_is_built(other, found) for other in sets.of(node))}
        if not bad:
            return found
        left_out |= bad


def _is_built(node: fx.Node, found: set[fx.Node]) -> bool:
    return node in found and node.op != "get_attr"


def _follow(region: Region, ops: OpTable, writes: dict[fx.Node, fx.Node], left_out: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in region.graph.nodes:
        if node in left_out:
            continue
        if node.op == "get_attr":
            if not node.meta.get("mutated") and isinstance(get_attr(region, str(node.target)), torch.Tensor):
                found.add(node)
        elif node.op in ("call_function", "call_method") and node.all_input_nodes:
            op = ops.of(node.target)
            pure = (node in writes or not node.is_impure()) and not (op is not None and op.random)
            if pure and all(source in found for source in node.all_input_nodes):
                found.add(node)
    return found


def _fold(region: Region, node: fx.Node, op: Op, name: str, computed: _Computed, constant: set[fx.Node]) -> None:
    source, steps = computed.source, computed.steps()
    value = _evaluate(region, source, steps)
    if value is None:
        return
    parameter = nn.Parameter(value, requires_grad=False)
    weight = argument(node, op, op.params.index("weight"))
    reads = isinstance(weight, fx.Node) and weight.op == "get_attr"
    owner = str(weight.target).rpartition(".")[0] if reads else scope_path(node)
    module = region.get_submodule(owner)
    if isinstance(module, op.modules) and _is_free(region, owner, name, steps, node):
        module._parameters[name] = parameter
        path = f"{owner}.{name}" if owner else name
    else:
        scope = scope_path(node)
        path = free_path(region, f"{scope}.{op.kind}_{name}" if scope else f"{op.kind}_{name}")
        region.get_submodule(scope).register_parameter(path.rpartition(".")[2], parameter)
    with region.graph.inserting_before(node):
        folded = region.graph.get_attr(path)
    folded.meta = {key: source.meta[key] for key in ("scope", "where", "tensor") if key in source.meta}
    node.replace_input_with(source, folded)
    constant.add(folded)


def _is_free(region: Region, owner: str, name: str, inside: set[fx.Node], reader: fx.Node) -> bool:
    """Tell whether a module's own tensor of that name goes into this computation, and only by its result elsewhere."""
    if region.graph.find_nodes(op="call_module", target=owner):
        return False
    path = f"{owner}.{name}" if owner else name
    pending = [node for node in region.graph.find_nodes(op="get_attr", target=path) if node.users]
    seen = {reader}
    while pending:
        node = pending.pop()
        if node not in inside:
            return False
        users = [user for user in node.users if user not in seen]
        seen.update(users)
        pending += users
    return True


@torch.no_grad()
def _evaluate(region: Region, node: fx.Node, wanted: set[fx.Node]) -> torch.Tensor | None:
    values: dict[fx.Node, Any] = {}
    for step in region.graph.nodes:
        if step not in wanted:
            continue
        args, kwargs = fx.node.map_arg((step.args, step.kwargs), values.__getitem__)
        if step.op == "get_attr":
            values[step] = get_attr(region, str(step.target))
        elif step.op == "call_method":
            values[step] = getattr(args[0], str(step.target))(*args[1:], **kwargs)
        else:
            values[step] = step.target(*args, **kwargs)
    value = values[node]
    return value.detach().clone() if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def _drop_unread(graph: fx.Graph, constant: set[fx.Node], writes: dict[fx.Node, fx.Node], sets: AliasSets) -> None:
    """Take out what was built in place, where nothing reads it any more: fx keeps writes."""
    for write in [node for node in writes if node in constant]:
        if write not in graph.nodes:
            continue
        group = set(sets.of(write))
        pending = list(group)
        while pending:
            users = [user for user in pending.pop().users if user not in group]
            group.update(users)
            pending += users
        if group <= constant:
            for node in reversed(list(graph.nodes)):
                if node in group:
                    graph.erase_node(node)
