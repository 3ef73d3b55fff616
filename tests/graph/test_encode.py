"""A graph as plain rows: it pickles, and comes back with the same nodes, targets and notes."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor, fx, nn

from fxquant.graph.encode import decode_graph, encode_graph, resolve_function


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x[1:3]).add(x.sum())


def test_a_graph_survives_pickling() -> None:
    graph = fx.symbolic_trace(Net()).graph
    next(iter(graph.nodes)).meta["where"] = "here"
    again = decode_graph(pickle.loads(pickle.dumps(encode_graph(graph))))
    assert [(n.op, n.name, n.target) for n in again.nodes] == [(n.op, n.name, n.target) for n in graph.nodes]
    assert [str(n.args) for n in again.nodes] == [str(n.args) for n in graph.nodes]
    assert next(iter(again.nodes)).meta == {"where": "here"}
    x = torch.randn(5)
    assert torch.equal(fx.GraphModule(nn.Module(), again)(x), Net()(x))


def test_functions_are_found_by_their_names() -> None:
    assert resolve_function("torch.nn.functional.relu") is nn.functional.relu
    assert resolve_function("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert resolve_function("getattr") is getattr
