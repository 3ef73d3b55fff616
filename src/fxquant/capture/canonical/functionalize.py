"""In-place ops become out-of-place ones, and what came after reads the result.

    y = relu_(x); z = x + 1     ->     y = relu(x); z = y + 1

That is right only if nothing else shares x's memory and is read later. The caller may do so: what is computed and then
written into an input (a cache) stays there; a `relu_` of an input leaves the caller's tensor alone. Where something
does, and for mutation that has no out-of-place twin (`x[i] = y`, `copy_`), the mutation stays and every node that may
share that memory gets `meta["mutated"] = True`, so that annotate leaves it in float. A product that reads such a tensor
gets it through `read_now`, so that it is observed and rounded where it is read, not where it was made.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import Target

from fxquant.capture.canonical.alias import AliasSets
from fxquant.capture.canonical.out_arguments import split_outs
from fxquant.capture.guards import apply_in_place, read_now
from fxquant.graph.nodes import TensorInfo, nodes_after
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable, Role, activation_nodes


def functionalize(region: Region, ops: OpTable) -> None:
    """Rewrite the region's in-place ops; its modules lose their `inplace` flag."""
    graph = region.graph
    split_outs(region)
    for node in graph.nodes:
        if node.target in _OPERATORS and isinstance(node.args[0], fx.Node) and not _is_tensor(node.args[0]):
            node.target = _OPERATORS[node.target]  # `n += 1` on a size makes a new number
    mutates = {node: target for node in graph.nodes if (target := _mutated(node, region, ops)) is not None}
    if mutates:
        sets = AliasSets(graph, region, ops, mutates)
        same = AliasSets(graph, region, ops, mutates, views=False)
        order = {node: i for i, node in enumerate(graph.nodes)}
        private = {
            node: _is_private(node, mutates, same, order)
            if _is_view(node, ops)
            else _is_private(node, mutates, sets, order)
            and not _is_for_the_caller(node, mutates[node], sets, order, ops)
            for node in mutates
        }
        for node in mutates:
            _rewrite(node, region, ops, private[node], sets)
        _read_in_order(region, ops)
    for node in mutates:
        if node.op == "call_module":
            cast(Any, region.get_submodule(str(node.target))).inplace = False


def _mutated(node: fx.Node, region: Region, ops: OpTable) -> fx.Node | None:
    """Return the node whose tensor a node changes; None for pure ops."""
    first = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
    if not isinstance(first, fx.Node):
        return None
    if node.op == "call_module":
        module = region.get_submodule(str(node.target))
        stock = type(module).__module__.startswith("torch.nn")
        return first if stock and getattr(module, "inplace", False) is True else None
    if node.op == "call_method":
        name = str(node.target)
        return first if (name.endswith("_") and not name.startswith("__")) or name.startswith("__i") else None
    if node.op != "call_function":
        return None
    if isinstance(node.target, torch._ops.OpOverload):
        return first if node.target._schema.is_mutable else None
    name = str(getattr(node.target, "__name__", ""))
    in_place = node.target in (operator.setitem, *_OPERATORS) or ops.out_of_place(node.target) is not None
    if in_place or (name.endswith("_") and hasattr(torch.Tensor, name)) or _inplace_flag(node):
        return first
    return None


_OPERATORS = {
    getattr(operator, "i" + name): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor")
    if hasattr(operator, "i" + name)
} | {operator.iand: operator.and_, operator.ior: operator.or_}


def _is_tensor(node: fx.Node) -> bool:
    if "tensor" in node.meta:
        return isinstance(node.meta["tensor"], TensorInfo)
    return node.target not in ("size", "dim", "numel", "ndimension", getattr)


def _inplace_position(target: Target) -> int | None:
    if isinstance(target, str):
        return None
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def _inplace_flag(node: fx.Node) -> bool:
    if not any(value is True for value in (*node.args, *node.kwargs.values())):
        return False  # which most ops are told by, without a look at their signature
    position = _inplace_position(node.target)
    if position is None:
        return False
    value = node.args[position] if position < len(node.args) else node.kwargs.get("inplace", False)
    return value is True


def _is_view(node: fx.Node, ops: OpTable) -> bool:
    """Tell whether an in-place op changes how a tensor sees its memory, not what is in it: `x.t_()`."""
    op = ops.of(node.target)
    return op is not None and op.is_view


def _is_private(node: fx.Node, mutates: dict[fx.Node, fx.Node], sets: AliasSets, order: dict[fx.Node, int]) -> bool:
    """Tell whether no other node that may share the mutated memory was made before and is read afterwards."""
    at, target = order[node], mutates[node]
    for other in sets.of(target):
        if other.op == "get_attr":
            return False  # state of the model: the mutation is meant to stay
        # results of earlier in-place ops on the same tensor are that tensor
        if _source(other, mutates) is _source(target, mutates) or order[other] >= at:
            continue
        if any(order[user] > at for user in other.users):
            return False
    return True


def _is_for_the_caller(
    node: fx.Node, target: fx.Node, sets: AliasSets, order: dict[fx.Node, int], ops: OpTable
) -> bool:
    """Tell whether an in-place op hands the caller something in an input, such as a cache.

    It does if it puts there what was computed, fills it, or is not read afterwards. The activations and the arithmetic
    of the op table are for the model: `relu_(x)`, `x += y`.
    """
    shared = list(sets.of(target))
    if not any(other.op == "placeholder" for other in shared):
        return False
    if ops.of(node.target) is None and any(operand is not target for operand in node.all_input_nodes):
        return True
    if str(getattr(node.target, "__name__", node.target)).partition(".")[0] in ("fill_", "zero_"):
        return True
    return not node.users and not any(order[user] > order[node] for other in shared for user in other.users)


def _source(node: fx.Node, mutates: dict[fx.Node, fx.Node]) -> fx.Node:
    while node in mutates and node.target is not operator.setitem:
        node = mutates[node]
    return node


def written_by(node: fx.Node) -> fx.Node | None:
    """In a functionalized graph: the node whose tensor a node still writes to."""
    writes = node.target in (apply_in_place, operator.setitem)
    writes = writes or (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable)
    first = node.args[0] if writes and node.op == "call_function" and node.args else None
    return first if isinstance(first, fx.Node) else None


def _rewrite(node: fx.Node, region: Region, ops: OpTable, private: bool, sets: AliasSets) -> None:
    target = cast(fx.Node, node.args[0] if node.args else next(iter(node.kwargs.values())))
    twin = _twin(node, ops) if _keeps_dtype(node, target) else None
    graph = node.graph
    if twin is not None and private:
        twin(node)
        after = nodes_after(node)
        target.replace_all_uses_with(node, delete_user_cb=lambda user: user in after)
        return
    for other in sets.of(target):
        other.meta["mutated"] = True
    if node.target is operator.setitem:
        return
    if twin is not None and not isinstance(node.target, torch._ops.OpOverload) and not _is_view(node, ops):
        twin(node)
        if region.training:  # backward reads what the op was given, which the write changes
            with graph.inserting_before(node):
                given = graph.call_method("clone", (target,))
            given.meta = {key: value for key, value in target.meta.items() if key != "mutated"}
            node.replace_input_with(target, given)
        with graph.inserting_after(node):
            write = graph.call_function(apply_in_place, (target, "copy_", node))
        sets.add(write, target)
        write.meta = dict(node.meta)
        node.replace_all_uses_with(write, delete_user_cb=lambda user: user is not write)
    elif not isinstance(node.target, torch._ops.OpOverload):
        name = str(getattr(node.target, "__name__", node.target))
        name = f"__{name}__" if node.target in _OPERATORS else name
        with graph.inserting_before(node):
            write = graph.call_function(apply_in_place, (node.args[0], name, *node.args[1:]), node.kwargs)
        sets.add(write, target)
        write.meta = dict(node.meta)
        node.replace_all_uses_with(write)
        graph.erase_node(node)


def _read_in_order(region: Region, ops: OpTable) -> None:
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is None or op.role is not Role.COMPUTE:
            continue
        for operand in dict.fromkeys(activation_nodes(node, op)):
            if operand.meta.get("mutated"):
                with region.graph.inserting_before(node):
                    read = region.graph.call_function(read_now, (operand,))
                read.meta = {key: value for key, value in operand.meta.items() if key != "mutated"}
                node.replace_input_with(operand, read)


def _keeps_dtype(node: fx.Node, target: fx.Node) -> bool:
    """In place, the result keeps the dtype of the left operand; out of place, it would be promoted."""
    mine = target.meta.get("tensor")
    infos = [other.meta.get("tensor") for other in node.all_input_nodes if other is not target]
    floats = {info.dtype for info in infos if isinstance(info, TensorInfo) and info.is_float}
    return not isinstance(mine, TensorInfo) or floats <= {mine.dtype}


def _twin(node: fx.Node, ops: OpTable) -> Callable[[fx.Node], None] | None:
    """Return a function that turns the node into its out-of-place twin; None if there is none."""
    if node.op == "call_module":
        return lambda n: None  # the flag of the module is cleared at the end
    out = ops.out_of_place(node.target) or _OPERATORS.get(node.target)
    if out is None and node.op == "call_method" and callable(getattr(torch.Tensor, str(node.target)[:-1], None)):
        out = str(node.target)[:-1]
    if out is not None:
        return lambda n: setattr(n, "target", out)
    position = _inplace_position(node.target) if node.op == "call_function" else None
    if position is None:
        return None

    def drop_flag(n: fx.Node) -> None:
        n.args = (*n.args[:position], False, *n.args[position + 1 :]) if position < len(n.args) else n.args
        n.kwargs = {key: value for key, value in n.kwargs.items() if key != "inplace"}

    return drop_flag
