"""Operands of an op as its reading needs them: shapes, numbers for each axis, integers with their scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.integers.program import Scales
from fxquant.integers.reader import Reader
from fxquant.integers.scales import position_of
from fxquant.integers.values import Whole

Args = Mapping[str, Any]
INT32 = 2**31 - 1
FINER = 16  # places that a bias or an end may have below those of sums


class Weight:
    """Integers of a constant, their scales and the axis of these."""

    def __init__(self, name: str, integers: Tensor, scale: Scales, axis: int | None) -> None:
        self.name, self.integers, self.scale, self.axis = name, integers, scale, axis


def is_binary(scales: Scales) -> bool:
    return all(position_of(scale) is not None for scale in scales)


def one_scale(reader: Reader, node: fx.Node, value: object) -> Whole:
    x = reader.whole(node, value)
    return reader.aligned(node, [x])[0] if x.axis is not None else x


def moved(x: Whole, name: str) -> Whole:
    return Whole(tensor=name, scale=x.scale, axis=x.axis, zero=x.zero, bound=x.bound, grid=x.grid)


def shape_of(node: fx.Node) -> Sequence[int | torch.SymInt]:
    """Return the shape of what a node reads first."""
    source: Any = node.args[0]
    shape: Sequence[Any] = source.meta["val"].shape
    return shape


def rank_of(node: fx.Node) -> int:
    """2 of max_pool2d."""
    return int(str(node.target).split(".")[1][-2])


def spread(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [int(each) for each in (values * count if len(values) == 1 else values)]
