"""Results that are written to a tensor of the caller become results, and a write of its own:

    add(x, 1, out=y)     ->     r = add(x, 1); y.copy_(r)

A tensor without elements takes the size of what is written to it; there, what comes after reads the result.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import fx

from fxquant.graph.nodes import TensorInfo, nodes_after
from fxquant.graph.region import Region


def split_outs(region: Region) -> None:
    """Rewrite the calls of a region that have `out`."""
    for node in list(region.graph.nodes):
        out = node.kwargs.get("out")
        given = (out,) if isinstance(out, fx.Node) else tuple(out) if isinstance(out, (tuple, list)) else ()
        whole = node.op in ("call_function", "call_method") and not isinstance(node.target, torch._ops.OpOverload)
        if whole and given and all(isinstance(each, fx.Node) for each in given):
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "out"}
            _write(node, given, single=isinstance(out, fx.Node))


def _write(node: fx.Node, given: tuple[fx.Node, ...], single: bool) -> None:
    graph, last = node.graph, node
    later = nodes_after(node)
    for index, out in enumerate(given):
        result = node
        if not single:
            with graph.inserting_after(last):
                last = result = graph.call_function(operator.getitem, (node, index))
        if _is_empty(out):
            out.replace_all_uses_with(result, delete_user_cb=lambda user: user in later)
            continue
        with graph.inserting_after(last):
            last = graph.call_method("copy_", (out, result))
        if single:
            node.replace_all_uses_with(out, delete_user_cb=functools.partial(operator.is_not, last))


def _is_empty(out: fx.Node) -> bool:
    info = out.meta.get("tensor")
    return isinstance(info, TensorInfo) and 0 in info.shape
