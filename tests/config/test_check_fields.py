"""Values of the wrong type, in what users write."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import fxquant as fq
from fxquant.config.limits import Grids, Kernel, Position, Shapes
from fxquant.tables.show_target import target_rows
from fxquant.targets.npu import xint8


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(fq.Target) if field.name != "bias"])
@pytest.mark.parametrize("value", [None, 3, object()], ids=["None", "3", "object"])
def test_every_field_of_a_target_is_checked(field: str, value: object) -> None:
    with pytest.raises(fq.ConfigError, match=rf"Target\({field}=.*\): expected"):
        dataclasses.replace(xint8(), **{field: value})


@pytest.mark.parametrize(
    ("make", "given", "error"),
    [
        (fq.Spec, {"signed": "no"}, "True or False"),
        (fq.Spec, {"axis": "1"}, "a whole number"),
        (fq.Spec, {"bits": True}, "a whole number"),
        (fq.Spec, {"limits": 3}, r"\(a whole number, a whole number\), or None"),
        (fq.Spec, {"group_size": "a", "granularity": "per_group"}, "a whole number, or None"),
        (fq.Spec, {"granularity": "per_chanel"}, "Closest: 'per_channel'"),
        (Grids, {"bits": 8}, "a tuple, each a whole number"),
        (Grids, {"scale": 3}, "one of 'float', 'pow2', or None"),
        (Shapes, {"batch": "1"}, "a whole number, or None"),
        (Kernel, {"input": None}, "a Grids"),
        (Position, {"measure": "cut", "kinds": "conv2d", "low": 0}, "a set, each a text"),
    ],
)
def test_the_error_says_what_is_expected(make: Any, given: dict[str, object], error: str) -> None:
    with pytest.raises(fq.ConfigError, match=error):
        make(**given)


def test_lists_are_kept_as_what_the_field_is() -> None:
    """So that a list works wherever a set does, and what is done to it later changes no target."""
    kinds = ["conv2d", "linear"]
    target = dataclasses.replace(
        xint8(),
        kinds=kinds,  # type: ignore[arg-type]
        tails={"conv2d": ["relu"]},  # type: ignore[dict-item]
        activations=Grids(bits=[8]),  # type: ignore[arg-type]
        positions=[Position(measure="cut", kinds=kinds, low=0, after=["relu"])],  # type: ignore[arg-type]
    )
    kinds.append("relu")
    assert fq.Spec(observer="fixed", range=[0, 1.0]).range == (0, 1.0)  # type: ignore[arg-type]
    assert target.kinds == frozenset(("conv2d", "linear")) == target.positions[0].kinds
    assert target.tails == {"conv2d": frozenset(("relu",))} and target.activations.bits == (8,)
    assert "conv2d, linear" in str([*target_rows(target)])
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    made = fq.quantize(model, [torch.randn(3, 4)], target=target, engine="reference")
    assert fq.check_target(made, target) == ()
