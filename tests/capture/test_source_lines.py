"""A node knows the line of the model's code that made it, whoever asked for the capture."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import regions


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.inner(x))


def lines(model: nn.Module) -> dict[str, str]:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(), (torch.ones(2, 4),))
    graph = next(region for _, region in regions(prepared)).graph
    return {node.name: str(node.meta["where"]) for node in graph.nodes if "where" in node.meta}


def test_the_line_is_that_of_forward() -> None:
    first = inspect.getsourcelines(Net.forward)[1]
    found = lines(Net())
    assert {found["inner_0"], found["sigmoid"]} == {f"{__file__}:{first + 1}"}


def test_modules_of_torch_have_no_line_of_the_caller() -> None:
    assert set(lines(nn.Sequential(nn.Linear(4, 4), nn.ReLU())).values()) == {""}
