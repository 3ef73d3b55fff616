"""The QDQ graph itself, run node by node: what machine code is compared with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, fx

from fxquant.engines.native.shapes import order_of
from fxquant.engines.onednn.unsigned import move_up, without_nan
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
    return run_and_look(region, graph, inputs, ())[0]


def run_and_look(
    region: Region, graph: fx.Graph, inputs: Sequence[object], nodes: Collection[fx.Node]
) -> tuple[object, dict[fx.Node, tuple[int, ...]]]:
    """Return the same, and the order of axes in memory of the tensors of some nodes."""
    runner = _Plain(region, graph=graph)
    runner.watched = nodes
    with torch.no_grad():
        return runner.run(*inputs, enable_io_processing=False), runner.orders


class _Plain(fx.Interpreter):
    """Gives the integers of the graph that was not moved up yet."""

    def __init__(self, region: Region, graph: fx.Graph) -> None:
        super().__init__(region, graph=graph)
        self.watched: Collection[fx.Node] = ()
        self.orders: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> object:
        made = self._made(n)
        if n in self.watched and isinstance(made, Tensor):
            self.orders[n] = order_of(made)
        return made

    def _made(self, n: fx.Node) -> object:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return self.call_function(n.target, without_nan(n, args), kwargs)


def returned(graph: fx.Graph, made: object) -> object:
    """Return what the caller of a graph gets for the argument of its output node."""
    codegen = graph._codegen
    return codegen.process_outputs(made) if isinstance(codegen, fx.graph._PyTreeCodeGen) else made
