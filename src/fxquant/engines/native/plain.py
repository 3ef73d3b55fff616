"""The QDQ graph itself, run node by node: what machine code is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from fxquant.engines.onednn.unsigned import move_up
from fxquant.graph.lowering import filled_graph
from fxquant.graph.region import Region


def plain_graph(region: Region) -> fx.Graph:
    """Return the QDQ graph that a region was lowered from, with numbers in it, and unsigned tensors."""
    graph = filled_graph(region)
    move_up(graph)
    return graph


def interpret(region: Region, graph: fx.Graph, inputs: Sequence[object]) -> object:
    """Return what the QDQ graph itself returns."""
    return returned(graph, run_plain(region, graph, inputs))


def run_plain(region: Region, graph: fx.Graph, inputs: Sequence[object]) -> object:
    """Return the same as the argument of the output node."""
    with torch.no_grad():
        return fx.Interpreter(region, graph=graph).run(*inputs, enable_io_processing=False)


def returned(graph: fx.Graph, made: object) -> object:
    """Return what the caller of a graph gets for the argument of its output node."""
    codegen = graph._codegen
    return codegen.process_outputs(made) if isinstance(codegen, fx.graph._PyTreeCodeGen) else made
