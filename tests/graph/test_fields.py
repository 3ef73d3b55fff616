"""Fields of what an opaque module returns are read as items, which can be saved, or are None where they are not set."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


class Pair(NamedTuple):
    last: Tensor
    states: Tensor | None = None


@dataclass
class Named(OrderedDict[str, Any]):
    """As transformers' outputs are: fields by name, and those that are there as items."""

    last: Any = None
    states: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))


class Encoder(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.fc = kind, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.kind(last=torch.relu(self.fc(x)))


class Model(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(kind), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        found = self.encoder(x)
        return {"out": self.head(found.last), "last": found.last, "states": found.states}


@pytest.mark.parametrize("kind", [Pair, Named])
def test_fields_of_an_opaque_module(kind: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(kind).eval(), torch.randn(4, 8)
    custom = {"non_traceable_module_name": ["encoder"]}
    quantized = fq.quantize(model, [x], prepare_custom_config=custom, engine="reference")
    found, expected = quantized(x), model(x)
    assert found["states"] is None
    torch.testing.assert_close(found["out"], expected["out"], atol=0.05, rtol=0.0)
    again = fq.load(fq.save(quantized, tmp_path / "m.fq"), model, engine="reference")
    assert torch.equal(again(x)["out"], found["out"]) and torch.equal(again(x)["last"], found["last"])
