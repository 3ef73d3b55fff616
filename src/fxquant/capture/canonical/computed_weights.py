"""Weights and biases that forward computes from parameters alone: computed once, in eval mode.

    conv2d(x, standardize(get_attr conv.weight), ...)          ->    conv2d(x, get_attr conv.weight, ...)
    linear(x, get_attr qkv.weight, cat([q_bias, 0, v_bias]))   ->    linear(x, get_attr qkv.weight, get_attr qkv.bias)

The value takes the place of the parameter in the module whose op it is, so that the call can be lifted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from fxquant.capture.canonical.stock import RECIPES
from fxquant.graph.nodes import scope_path
from fxquant.graph.paths import free_path, get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import Op, OpTable, argument


def compute_weights(region: Region, ops: OpTable) -> Region:
    """Fold what weighted functions get as weight and bias. In train mode nothing is folded: weights still change."""
    if region.training:
        return region
    constant = _constants(region.graph, ops, region)
    for node in list(region.graph.nodes):
        op = ops.of(node.target) if node.op == "call_function" else None
        if op is None or not op.has_weight or op.kind not in RECIPES:
            continue
        for name in ("weight", "bias"):
            source = argument(node, op, op.params.index(name)) if name in op.params else None
            if isinstance(source, fx.Node) and source in constant and source.op != "get_attr":
                _fold(region, node, op, name, source, constant)
    return region


def _constants(graph: fx.Graph, ops: OpTable, region: Region) -> set[fx.Node]:
    """Nodes whose value follows from parameters and buffers that nothing changes."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.meta.get("mutated"):
            continue
        if node.op == "get_attr":
            if isinstance(get_attr(region, str(node.target)), torch.Tensor):
                found.add(node)
        elif node.op in ("call_function", "call_method") and node.all_input_nodes and not node.is_impure():
            op = ops.of(node.target)
            random = op is not None and op.random
            if not random and all(source in found for source in node.all_input_nodes):
                found.add(node)
    return found


def _fold(region: Region, node: fx.Node, op: Op, name: str, source: fx.Node, constant: set[fx.Node]) -> None:
    value = _evaluate(region, source)
    if value is None:
        return
    parameter = nn.Parameter(value, requires_grad=False)
    weight = argument(node, op, op.params.index("weight"))
    reads = isinstance(weight, fx.Node) and weight.op == "get_attr"
    owner = str(weight.target).rpartition(".")[0] if reads else scope_path(node)
    module = region.get_submodule(owner)
    if type(module) in op.modules or isinstance(module, op.modules):
        if not _is_free(region, owner, name, source):
            return
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


def _is_free(region: Region, owner: str, name: str, source: fx.Node) -> bool:
    """Whether nothing but this computation reads the module's own tensor of that name."""
    inside = _ancestors(source)
    for node in region.graph.nodes:
        if node.op == "call_module" and str(node.target) == owner:
            return False
        own = node.op == "get_attr" and str(node.target) == (f"{owner}.{name}" if owner else name)
        if own and any(user not in inside for user in node.users):
            return False
    return True


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


@torch.no_grad()
def _evaluate(region: Region, node: fx.Node) -> torch.Tensor | None:
    wanted = _ancestors(node)
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
