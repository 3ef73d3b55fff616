"""A graph is cut where few tensors pass, and the pieces compute what the whole does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms.replay import Replay, Streams
from fxquant.algorithms.segments import segments
from fxquant.flows.decide import decide
from fxquant.graph.context import Context
from fxquant.graph.region import Region


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.two, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.two(F.relu(self.one(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1).view(x.size(0), -1))


def decided(model: nn.Module, x: Tensor) -> Region:
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    fq.calibrate(prepared, [x])
    made = decide(prepared)
    assert isinstance(made, Region)
    return made


def test_blocks_end_where_one_tensor_passes_and_cover_the_graph() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(4, 3, 8, 8)
    region = decided(model, x)
    parts = segments(region, Context(), least=1)
    inside = [{str(node.target) for node in part.nodes if node.op == "call_module"} for part in parts]
    assert any({"one", "two"} <= paths for paths in inside), "a residual block is not cut"
    assert [any("head" in path for path in paths) for paths in inside].count(True) == 1
    streams, runner, given = Streams(region, [[x]]), Replay(region), {}
    for index, part in enumerate(parts):
        given = runner.step(part, streams.true[0])
        streams.advance(parts[index + 1 :], [given], [{}])
    (result,) = [value for node, value in given.items() if any(user.op == "output" for user in node.users)]
    torch.testing.assert_close(result, model(x))


def test_segments_have_a_bound_where_tensors_go_on_all_the_way() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))

        def forward(self, x: Tensor) -> Tensor:
            y = x
            for layer in self.layers:
                y = F.relu(layer(y)) + x
            return y

    region = decided(Dense().eval(), torch.randn(4, 4))
    parts = segments(region, Context(), least=2, most=4)
    counts = [sum(str(node.target).startswith("layers") for node in part.nodes) for part in parts]
    assert sum(counts) == 12 and max(counts) <= 5
