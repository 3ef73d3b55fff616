"""Data that stand for none, zeros mostly, are told of; real data are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


def converted(model: nn.Module, x: Tensor, mapping: fq.QConfigMapping) -> nn.Module:
    prepared = fq.prepare_fx(model, mapping, (x,))
    prepared(x)
    return fq.convert_fx(prepared, engine="reference")


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("observer", ["minmax", "histogram", "moving_average"])
def test_inputs_of_one_value(value: float, observer: str) -> None:
    spec = fq.Spec(signed=False, symmetric=False, observer=observer)
    mapping = fq.QConfigMapping().set_global(fq.QConfig(activation=spec, weight=fq.Spec()))
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.full((4, 8), value)
    with pytest.warns(UserWarning, match=rf"one value in the whole of \w+ \(only {value:g}\)"):
        converted(model, x, mapping)
    with pytest.warns(UserWarning, match="Calibrate with samples"):
        fq.quantize(model, [x], qconfig_mapping=mapping, engine="reference")


def test_inputs_that_are_data_or_have_a_given_range() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(4, 8)
    fixed = fq.Spec(signed=False, symmetric=False, observer="fixed", range=(0.0, 1.0))
    given = fq.QConfigMapping().set_global(fq.QConfig(activation=fixed, weight=fq.Spec()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted(model, x, fq.get_default_qconfig_mapping())
        converted(model, torch.zeros(4, 8), given)
