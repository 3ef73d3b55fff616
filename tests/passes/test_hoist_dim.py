"""A reader of the rank between two ops moves up to their input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxquant.capture import capture
from fxquant.graph.context import Context
from fxquant.graph.run_passes import run_passes
from fxquant.passes.hoist_dim import hoist_dim


class Asks(nn.Module):
    def __init__(self, keeps: nn.Module) -> None:
        super().__init__()
        self.first, self.last = keeps, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y) * y.dim()


@pytest.mark.parametrize(("op", "reads"), [(nn.Linear(3, 3), "x"), (nn.Flatten(), "first")], ids=["keeps", "changes"])
def test_the_rank_is_read_where_it_is_first_known(op: nn.Module, reads: str) -> None:
    x = torch.randn(2, 3, 3)
    model = Asks(op).eval()
    region = capture(model, None, method="symbolic")  # without an example, the rank is not known
    run_passes(region, (hoist_dim,), Context())
    assert [node.args[0].name for node in region.graph.nodes if node.target == "dim"] == [reads]
    assert torch.equal(region(x), model(x))
