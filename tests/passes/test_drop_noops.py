"""What does nothing at inference leaves the graph; what does something stays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import fxquant as fq
from fxquant.capture.capture import capture
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.graph.run_passes import run_passes
from fxquant.numerics.affine import sqnr_db
from fxquant.passes.drop_noops import drop_noops


@fx.wrap
def stochastic_depth(input: Tensor, p: float, mode: str, training: bool = True) -> Tensor:
    return input * 0 if training else input


stochastic_depth.__module__ = "torchvision.ops.stochastic_depth"


class StochasticDepth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return stochastic_depth(x, 0.5, "row", self.training)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout, self.identity = nn.Linear(4, 4), nn.Dropout(), nn.Identity()
        self.stochastic_depth = StochasticDepth()

    def forward(self, x: Tensor) -> Tensor:
        y = self.identity(self.dropout(self.linear(x.float())))
        return x + self.stochastic_depth(y)


def targets(model: nn.Module, x: Tensor) -> list[str]:
    region = capture(model, (x,), {}, method="symbolic")
    assert isinstance(region, Region)
    run_passes(region, (drop_noops,), Context())
    return [node.name for node in region.graph.nodes if node.op.startswith("call")]


def test_noops_are_dropped_in_eval_mode() -> None:
    assert targets(Block().eval(), torch.randn(2, 4)) == ["linear", "add"]


def test_what_works_in_training_stays_there() -> None:
    assert targets(Block().train(), torch.randn(2, 4)) == ["linear", "dropout", "stochastic_depth", "add"]


def test_what_is_skipped_in_eval_mode_is_dropped_after_training() -> None:
    x = torch.randn(2, 4)
    prepared = fq.prepare_qat_fx(Block().train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    prepared(x)
    converted = fq.convert_fx(prepared, engine="reference")
    assert isinstance(converted, Region)
    assert not [node for node in converted.graph.nodes if node.op == "call_module"]


def test_a_cast_to_another_dtype_stays() -> None:
    assert targets(Block().eval(), torch.randn(2, 4, dtype=torch.float64))[0] == "float_1"


class KeptOn(nn.Module):
    """Dropout in every call, as where the spread of several answers is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(F.dropout(self.body(x).relu(), 0.5, True))
        return found


def test_a_dropout_that_stays_on_is_not_on_the_grid_of_its_input() -> None:
    """What it keeps is twice as large, and was clipped."""
    torch.manual_seed(0)
    model, data = KeptOn().eval(), [torch.randn(64, 8) for _ in range(2)]
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (data[0],))
    quantized = fq.convert_fx(fq.calibrate(prepared, data))
    (row,) = (row for row in fq.explain(quantized) if row.kind == "dropout")
    assert row.status == "float" and "is on in every call" in row.reason
    torch.manual_seed(1)
    wanted = model(data[0])
    torch.manual_seed(1)
    assert sqnr_db(wanted, quantized(data[0])) > 35
