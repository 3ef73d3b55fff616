"""A target checks itself against the op table and its own limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import fxquant as fq
from fxquant.config.limits import Grids
from fxquant.errors import ConfigError
from fxquant.targets import by_name


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"kinds": frozenset(("conv2d", "conv9d"))}, "not in the op table: conv9d"),
        ({"split": frozenset(("conv2d",))}, "split takes"),
        ({"rewrites": frozenset(("silu_to_hardswich",))}, "Closest: 'silu_to_hardswish'"),
        ({"biases": ("int64",)}, "biases takes"),
        ({"activations": Grids(bits=(4,))}, "its default activation has"),
    ],
)
def test_a_mistake_is_named(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        dataclasses.replace(by_name("generic"), **wrong)


def test_its_qconfig_has_its_specs() -> None:
    target = by_name("generic")
    assert target.qconfig == fq.QConfig(activation=target.activation, weight=target.weight, bias=target.bias)
    assert target.kernel("conv2d") == target.kernels.get("conv2d", target.kernel("relu"))
