"""Signed activations on kernels that take unsigned ones: the same numbers, 128 steps further up.

(q - z) s  =  ((q + 128) - (z + 128)) s
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fxquant.engines.read_qdq import dtype_of, is_dequantize, is_quantize
from fxquant.graph.region import Region

_UP, _MOVED = 128, "moved_up"


def to_unsigned(region: Region) -> Region:
    """Move int8 tensors that only dequantize nodes read to uint8."""
    move_up(region.graph)
    return region


def move_up(graph: fx.Graph) -> None:
    """Do the same for a graph."""
    for node in graph.nodes:
        if is_quantize(node) and dtype_of(node) == torch.int8 and node.users and all(map(is_dequantize, node.users)):
            for each in (node, *node.users):
                _move_up(each)


def _move_up(node: fx.Node) -> None:
    x, scale, zero, low, high, _ = node.args
    assert isinstance(zero, int) and isinstance(low, int) and isinstance(high, int)
    node.args = (x, scale, zero + _UP, low + _UP, high + _UP, torch.uint8)
    node.meta[_MOVED] = True


def nan_of(quantize: fx.Node) -> int:
    """Return the integer that NaN becomes: 0, which a cast makes of it, moved up where the grid was."""
    return _UP if quantize.meta.get(_MOVED) else 0


def without_nan(node: fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values that a node is called with: numbers in the place of NaN where it quantizes and was moved up."""
    nan = nan_of(node) if is_quantize(node) else 0
    if not nan or not args[0].is_floating_point():
        return args
    x, scale, zero, *rest = args
    return (torch.where(x.isnan(), (nan - zero) * scale, x), scale, zero, *rest)
