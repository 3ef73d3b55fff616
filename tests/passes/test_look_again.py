"""Graphs run again on the inputs that calibration kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import MeasuredBias
from fxquant.capture import Method
from fxquant.flows.decide import decide
from fxquant.graph.region import Region
from fxquant.numerics.affine import sqnr_db
from fxquant.passes.look_again import kept_inputs


class Options(nn.Module):
    """`scaled` decides what is computed; the example gives another value than the default."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scaled: bool | None = None) -> Tensor:
        if scaled is None:
            raise ValueError("say whether")
        return self.last(torch.relu(self.first(self.norm(x))) * (2.0 if scaled else 1.0))


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_plain_arguments_have_the_values_of_the_capture(effort: str) -> None:
    torch.manual_seed(0)
    model, batch = Options().eval(), {"x": torch.randn(16, 8), "scaled": False}
    quantized = fq.quantize(model, [batch, batch], effort=effort, engine="reference")
    with torch.no_grad():
        assert sqnr_db(model(**batch), quantized(**batch)) > 30


class Turned(nn.Module):
    """Is handed a pair of tensors, for which it has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        assert turn is not None
        y = self.first(self.norm(x))
        return self.last(y * turn[0] + y.roll(1, -1) * turn[1])


@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_containers_are_not_taken_for_their_defaults(effort: str) -> None:
    torch.manual_seed(0)
    model = Turned().eval()
    batch = {"x": torch.randn(16, 8), "turn": (torch.rand(16, 8), torch.rand(16, 8))}
    quantized = fq.quantize(model, [batch, batch], effort=effort, engine="reference")
    with torch.no_grad():
        assert sqnr_db(model(**batch), quantized(**batch)) > 30


class Nested(nn.Module):
    """Reads tensors out of containers inside of one, looks for a key, and takes a number from there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, given: dict[str, Any], more: Tensor) -> Tensor:
        x = sum(self.first(each) for each in given["several"]) + given["pair"][0] * given["times"] + more
        return self.last(torch.relu(x + given["extra"] if "extra" in given else x))


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_what_is_in_containers_is_kept(method: Method) -> None:
    torch.manual_seed(0)

    def call() -> tuple[dict[str, Any], Tensor]:
        a, b, c, d, e, more = torch.randn(6, 16, 8)
        return {"several": [a, b], "times": 2, "unread": c, "pair": (d, e), "extra": c}, more

    batches = [call() for _ in range(3)]
    biases = (MeasuredBias(),)
    prepared = fq.prepare_fx(
        Nested().eval(), fq.get_default_qconfig_mapping(), batches[0], method=method, algorithms=biases
    )
    fq.calibrate(prepared, batches)
    decided = decide(prepared)
    assert isinstance(decided, Region)
    kept = kept_inputs(decided)
    assert len(kept) == 3
    for values, batch in zip(kept, batches, strict=True):
        assert torch.equal(decided(*values), decided(*batch))
    assert sqnr_db(Nested.forward(prepared, *batches[0]), fq.convert_fx(prepared)(*batches[0])) > 30
