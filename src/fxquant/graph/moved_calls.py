"""Clips and pads that algorithms moved along with their channels: a state_dict has them in its metadata.

What loads the weights computes the same then, such as a model for training that starts from a calibrated one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import fx
from torch.fx.node import Argument

MOVED = "moved"  # in the meta of nodes, and in metadata
_FUNCTIONS: dict[str, Callable[..., Any]] = {"hardtanh": F.hardtanh, "pad": F.pad}


def move_call(node: fx.Node, function: str, *settings: Argument) -> None:
    """Let a unary op be another function, in place, so that the tensors that were seen keep their names."""
    operand = node.all_input_nodes[0]
    node.op, node.target = "call_function", _FUNCTIONS[function]
    node.args, node.kwargs = (operand, *settings), {}
    node.meta[MOVED] = (function, *settings)


def keep_moved(graph: fx.Graph, state_dict: object, path: str) -> None:
    """Note in the metadata of a state_dict what was moved in the graph of the region at `path`."""
    metadata = getattr(state_dict, "_metadata", None)
    found = {node.name: node.meta[MOVED] for node in graph.nodes if MOVED in node.meta}
    if found and metadata is not None:
        metadata[path][MOVED] = found


def read_moved(graph_module: fx.GraphModule, metadata: object) -> None:
    """Move the calls that were moved where the state was taken."""
    given = metadata.get(MOVED, {}) if isinstance(metadata, dict) else {}
    for node in graph_module.graph.nodes:
        if node.name in given:
            move_call(node, *given[node.name])
    if given:
        graph_module.recompile()
