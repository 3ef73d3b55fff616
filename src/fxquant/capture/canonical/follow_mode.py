"""Batch norms and dropouts of an exported program as modules, which follow `train()` and `eval()`.

    batch_norm(x, get_attr "bn.weight", ..., training=False)     ->     call_module "bn"  (nn.BatchNorm2d)
    add_(get_attr "bn.num_batches_tracked", 1)                   ->     nothing: the module counts

In the program their mode is a flag of the call, so that training, or its end, would go around them. In a program that
was exported in train mode (a flag is set), those without a flag were frozen by the user and stay so.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from fxquant.capture.canonical.stock import RECIPES, TENSORS, build, read_call
from fxquant.graph.paths import find_module, free_path, get_attr, set_submodule

_DROPOUT = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)


def follow_mode(program: fx.GraphModule) -> None:
    """Put modules in the place of calls with a flag; the graph is a new one, since copies share it."""
    flags = {_flag(node) for node in program.graph.nodes} - {None}
    if not flags:
        return
    mode = any(flags)
    graph = copy.deepcopy(program.graph)
    for node in list(graph.nodes):
        if _flag(node) is mode:
            path = _dropout(program, node) if node.target in _DROPOUT else _norm(program, node)
            if path is not None:
                with graph.inserting_before(node):
                    call = graph.call_module(path, (node.args[0],))
                call.meta = dict(node.meta)
                node.replace_all_uses_with(call)
                graph.erase_node(node)
                _drop_counter(graph, f"{path}.num_batches_tracked")
    # fx gives each module a class of its own, which holds the forward; the copy shares it with the user's program.
    # It knows such classes by their qualified name.
    cls = type(program)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    program.__class__ = type(cls.__name__, cls.__bases__, names)
    program.graph = graph


def _drop_counter(graph: fx.Graph, name: str) -> None:
    for read in graph.find_nodes(op="get_attr", target=name):
        for node in list(read.users):
            if node.target is torch.ops.aten.add_.Tensor and not node.users:
                graph.erase_node(node)


def _flag(node: fx.Node) -> bool | None:
    if node.target is not torch.ops.aten.batch_norm.default and node.target not in _DROPOUT:
        return None
    call = read_call(node)
    return None if call is None else bool(call["training"])


def _dropout(program: fx.GraphModule, node: fx.Node) -> str:
    path = free_path(program, "dropout")
    set_submodule(program, path, nn.Dropout(float(node.args[1])))  # type: ignore[arg-type]
    return path


def _norm(program: fx.GraphModule, node: fx.Node) -> str | None:
    """Return the path of the module that holds the tensors of a batch norm and nothing else; there is one now."""
    call, value = read_call(node), node.meta.get("val")
    assert call is not None
    nodes = [call[name] for name in TENSORS]
    names = [str(each.target) for each in nodes if isinstance(each, fx.Node) and each.op == "get_attr"]
    paths = {name.rpartition(".")[0] for name in names}
    holder = find_module(program, next(iter(paths))) if len(paths) == 1 and "" not in paths else None
    if holder is None or not isinstance(value, Tensor) or len(names) != sum(each is not None for each in nodes):
        return None
    if {*holder._parameters, *holder._buffers} - {"num_batches_tracked"} - {name.rpartition(".")[2] for name in names}:
        return None
    tensors: dict[str, Any] = {
        name: None if each is None else get_attr(program, str(each.target))
        for name, each in zip(TENSORS, nodes, strict=True)
    }
    stock = RECIPES["batch_norm"](call, tensors, value.dim())
    if stock is None or tensors["running_mean"] is None:
        return None
    path = paths.pop()
    set_submodule(program, path, build(stock, holder, tensors))
    return path
