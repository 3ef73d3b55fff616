"""Remove what only tracing needed: assertions, guards, copies of constants, no-op slices, identities; dead code."""

from __future__ import annotations

import operator
import sys

import torch
from torch import fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.late_code import outdate
from fxquant.graph.region import Region

_ATEN = torch.ops.aten
_CHECKS = ("_assert", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range")
_COPIES = (_ATEN.lift_fresh_copy.default, _ATEN.detach_.default)


def drop_checks(region: Region) -> None:
    """Drop the nodes that do nothing for the result. Dead code stays: in-place methods look dead to fx."""
    graph = region.graph
    for node in list(graph.nodes):
        if _is_check(node):
            graph.erase_node(node)
        elif _does_nothing(node, region):
            source = node.args[0]
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    _drop_guards(region)


def _drop_guards(region: Region) -> None:
    """Drop the module with the checks of an exported program, which no pickle takes. The graph calls it no more."""
    for name, module in list(region._modules.items()):
        if torch_compat.is_guards(module):
            del region._modules[name]


def sweep(region: Region) -> None:
    """Drop dead code, once all mutation is explicit."""
    region.graph.eliminate_dead_code()
    region.graph.lint()
    outdate(region)


def _is_check(node: fx.Node) -> bool:
    if node.op == "call_module":
        return str(node.target) == "_guards_fn"
    if node.op != "call_function" or node.users:
        return False
    if node.target in (torch._assert, torch._assert_async):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__.startswith(_CHECKS)


def _does_nothing(node: fx.Node, region: Region) -> bool:
    if node.op == "call_module":
        module = region.get_submodule(str(node.target))
        hooked = module._forward_hooks or module._forward_pre_hooks
        return type(module) is nn.Identity and not hooked and len(node.args) == 1
    if node.target in _COPIES:
        return not any(_writes(user) for user in node.users)
    if node.op == "call_method" and node.target == "requires_grad_":
        return True
    if node.target is _ATEN.slice.Tensor:
        dim, start, end, step = _slice(node.args)
        return start in (None, 0) and end in (None, sys.maxsize) and step == 1 and isinstance(dim, int)
    return False


def _slice(args: tuple[object, ...]) -> tuple[object, object, object, object]:
    given = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])
    return given[0], given[1], given[2], given[3]


def _writes(node: fx.Node) -> bool:
    if node.target in _COPIES:
        return any(_writes(user) for user in node.users)
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    return node.target is operator.setitem or str(node.target).endswith("_")
