"""Numbers in a graph that follow from the sizes of its inputs, but not from the batch: written in as constants.

Code that pads as TensorFlow does, or cuts pictures into windows, computes dozens of them at every call.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fxquant.graph.nodes import reads_size

Values: TypeAlias = Mapping[fx.Node, Any]  # what nodes gave in a run
_PLAIN = (bool, int, float, str, slice, torch.Size, torch.dtype, torch.device)


def fold_sizes(graph: fx.Graph, runs: tuple[Values, Values]) -> None:
    """Replace such nodes in place. `runs` are the values of all nodes for two batches, with tensors without memory."""
    fixed: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or not _is_same(node, runs):
            continue
        if all(_is_fixed(operand, node, fixed, runs[0]) for operand in node.all_input_nodes):
            fixed[node] = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), runs[0][node])
    for node in graph.nodes:
        if any(operand in fixed for operand in node.all_input_nodes):
            node.args = fx.node.map_arg(node.args, lambda operand: fixed.get(operand, operand))
            node.kwargs = fx.node.map_arg(node.kwargs, lambda operand: fixed.get(operand, operand))
    for node in reversed(fixed):
        graph.erase_node(node)


def _is_same(node: fx.Node, runs: tuple[Values, Values]) -> bool:
    """Tell whether the value is a number, or some, and the same for both batches."""
    values = [run[node] for run in runs]
    if not all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(values)):
        return False
    return bool(values[0] == values[1])


def _is_fixed(operand: fx.Node, node: fx.Node, fixed: Values, values: Values) -> bool:
    """Tell whether what a node sees of its operand is the same for all batches: not only for two."""
    if isinstance(values[operand], Tensor):
        return reads_size(node) or (node.target is getattr and node.args[1] == "dtype")
    return operand in fixed or (node.target is operator.getitem and isinstance(values[operand], torch.Size))
