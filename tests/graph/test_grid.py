"""A grid read from its node, as the arguments of the ops, and used on tensors."""

from __future__ import annotations

import torch
from torch import fx

from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams

GRID = QParams(scale=0.5, zero_point=3, quant_min=0, quant_max=255, dtype=torch.uint8)


def test_a_node_gives_back_the_grid_that_it_was_made_with() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(GRID.quantize_op, (x, *GRID.quantize_args))
    assert QParams.of(node) == GRID and QParams.of(x) is None
    assert node.target is torch_compat.QUANTIZE


def test_values_go_to_the_nearest_step_and_back() -> None:
    x = torch.tensor([-2.0, 0.0, 0.3, 1000.0])
    q = GRID.quantize(x)
    assert q.tolist() == [0, 3, 4, 255]
    assert GRID.dequantize(q).tolist() == [-1.5, 0.0, 0.5, 126.0]
