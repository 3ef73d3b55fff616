"""Who may divide by a tensor: the next product ends the search."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.algorithms.divided_by import may_divide_by
from fxquant.graph.context import Context
from fxquant.graph.region import Region


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(F.gelu(self.a(x)).reshape(-1, 4)) / 2
        return F.normalize(self.d(x / (self.c(x) * 3)), dim=1)


def test_divisors_and_what_is_not_known() -> None:
    region = fq.fuse_fx(Norms().eval())
    assert isinstance(region, Region)
    nodes = {node.target: node for node in region.graph.nodes if node.op == "call_module"}
    assert {path: may_divide_by(region, Context(), nodes[path]) for path in "abcd"} == {
        "a": False,
        "b": False,
        "c": True,
        "d": True,
    }
