"""Sensitivity: the tensor that int8 breaks is the first row, alone quantized and alone in float."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from torch import nn

import fxquant as fq
from tuning_models import Share, batches, broken, whole


def test_the_broken_tensor_comes_first() -> None:
    found = fq.sensitivity(broken(), batches())
    first = found.rows[0]
    assert first.what == "activation" and first.ops == ("b",)
    assert first.alone_quantized < 10 < min(row.alone_quantized for row in found.rows[2:])
    assert first.alone_float > found.quantized + 3
    assert {row.site for row in found if row.what == "weight"} == {"a", "b", "c", "d"}


def test_it_leaves_the_prepared_model_as_it_was() -> None:
    model = whole()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (batches()[0],))
    fq.calibrate(prepared, batches())
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    quantized = fq.convert_fx(prepared)(batches()[0])
    fq.sensitivity(prepared, batches())
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())
    assert torch.equal(fq.convert_fx(prepared)(batches()[0]), quantized)


CALLS: list[int] = []


class Louder(nn.Module):
    """Its output grows with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(1)
        self.calls += 1
        y: torch.Tensor = self.linear(x)
        return y * self.calls


def test_each_value_is_of_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model, data = Louder().eval(), [torch.randn(8, 4)]
    CALLS.clear()
    found = fq.sensitivity(model, data)
    assert not CALLS and all(row.alone_quantized > 30 for row in found) and found.quantized > 30


def test_on_the_users_metric() -> None:
    model = broken()
    found = fq.sensitivity(model, batches(), evaluate=Share(model))
    assert found.float_ == 1.0 and found.quantized < 0.95
    assert found.rows[0].ops == ("b",) and found.rows[0].alone_quantized < 0.95


def test_forms() -> None:
    found = fq.sensitivity(whole(), batches(), num_batches=1)
    assert [row["site"] for row in json.loads(found.to_json())["rows"]] == [row.site for row in found]
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == len(found) and float(rows[0]["alone_quantized"]) == found.rows[0].alone_quantized
    assert "alone quantized" in str(found)


def test_no_data_is_an_error() -> None:
    with pytest.raises(fq.ConfigError, match="no data"):
        fq.sensitivity(whole(), [])
