"""A grid: which real numbers the integers of a tensor stand for. The one value type for it.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max)          x' = (q - zero_point) * scale

In a graph the scale and zero point are numbers, or nodes that read state; per channel they are tensors along `axis`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from fxquant.graph import torch_compat

_PER_TENSOR = (torch_compat.QUANTIZE, torch_compat.QUANTIZE_ROUNDING, torch_compat.DEQUANTIZE)
_PER_CHANNEL = (torch_compat.QUANTIZE_CHANNEL, torch_compat.QUANTIZE_CHANNEL_ROUNDING, torch_compat.DEQUANTIZE_CHANNEL)


@dataclass(frozen=True, kw_only=True, slots=True)
class QParams:
    """The grid of an integer tensor; with an `axis`, one of its own for each channel along it."""

    scale: Any  # float; per channel a Tensor; in a graph also the node that reads it
    zero_point: Any  # int, likewise
    quant_min: int
    quant_max: int
    dtype: torch.dtype
    axis: int | None = None
    rounding: str = "half_even"

    @classmethod
    def of(cls, node: fx.Node) -> QParams | None:
        """Return the grid of a quantize or dequantize node on a fixed grid; None for any other."""
        if node.target in _PER_TENSOR:
            scale, zero_point, low, high, dtype, *rest = node.args[1:]
            axis: Any = None
        elif node.target in _PER_CHANNEL:
            scale, zero_point, axis, low, high, dtype, *rest = node.args[1:]
        else:
            return None
        ends: Any = {"quant_min": low, "quant_max": high, "dtype": dtype}
        return cls(scale=scale, zero_point=zero_point, axis=axis, rounding=str((*rest, "half_even")[0]), **ends)

    @property
    def args(self) -> tuple[Argument, ...]:
        """What a dequantize op is given after its tensor."""
        along = () if self.axis is None else (self.axis,)
        return (self.scale, self.zero_point, *along, self.quant_min, self.quant_max, self.dtype)

    @property
    def quantize_args(self) -> tuple[Argument, ...]:
        """What a quantize op is given after its tensor."""
        return self.args if self.rounding == "half_even" else (*self.args, self.rounding)

    @property
    def quantize_op(self) -> Callable[..., Tensor]:
        ops = _PER_TENSOR if self.axis is None else _PER_CHANNEL
        return ops[0] if self.rounding == "half_even" else ops[1]

    @property
    def dequantize_op(self) -> Callable[..., Tensor]:
        return (_PER_TENSOR if self.axis is None else _PER_CHANNEL)[2]

    def quantize(self, x: Tensor) -> Tensor:
        """Return the integers nearest to `x`, as the model wants its input."""
        return self.quantize_op(x.float(), *self.quantize_args)

    def dequantize(self, q: Tensor) -> Tensor:
        """Return the real values of the integers that the model returns."""
        return self.dequantize_op(q, *self.args)
