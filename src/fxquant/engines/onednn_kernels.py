"""torch's oneDNN int8 kernels as modules: integer weights, packed once, fused post-ops, int8 or float out.

A kernel takes its integers from the `QuantizedWeight` at the op's own path and packs them on the first call. The packed
copy belongs to this process: it is dropped when the module is copied or pickled, and made again after.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.engines.kernels import Grid
from fxquant.passes.convert_weights import QuantizedWeight

_MOST_PACKED = 4  # packed copies per kernel: the best layout may differ between batch sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """A unary op that the kernel applies before it writes, in oneDNN's vocabulary."""

    name: str = "none"
    args: tuple[float, ...] = ()
    algorithm: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What the kernel writes: integers on a grid, or float."""

    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulate:
    """A second tensor that is added. The sum is written over it, so it is copied first if it is still needed."""

    grid: Grid
    copy: bool


class _Kernel(nn.Module):
    """Holds what every call needs. `holder` is not a child, so that the weight stays in one place of the state_dict."""

    holder: QuantizedWeight

    def __init__(
        self, holder: QuantizedWeight, x_grid: Grid | None, output: Output, tail: Tail, accumulate: Accumulate | None
    ) -> None:
        super().__init__()
        self.__dict__["holder"] = holder
        self.x_grid = x_grid
        self.output = output
        self.tail = tail
        self.accumulate = accumulate
        self.packed: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kernel:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return made

    def _arguments(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """The constant arguments of a call for inputs of this shape."""
        key = (self.holder.generation, *shape)
        found = self.packed.get(key)
        if found is None:
            if len(self.packed) >= _MOST_PACKED:
                self.packed.clear()
            found = self.packed[key] = self._pack(shape)
        return found

    def _pack(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        raise AssertionError("a kernel packs its own weight")

    def _scales(self) -> tuple[Tensor, Tensor, Tensor | None]:
        holder = self.holder
        zeros = torch.zeros(holder.weight_scale.numel(), dtype=torch.int32)
        return holder.weight_scale, zeros, holder.dequantized("bias")

    def extra_repr(self) -> str:
        kind = self.holder.kind
        parts = [str(kind), f"out={str(self.output.dtype).removeprefix('torch.')}"]
        parts += [f"tail={self.tail.name}"] if self.tail.name != "none" else []
        parts += ["accumulate"] if self.accumulate is not None else []
        return ", ".join(parts)


class ConvKernel(_Kernel):
    """`onednn.qconv_pointwise`: convolution, an optional residual sum, an optional relu, and requantization."""

    def __init__(
        self,
        holder: QuantizedWeight,
        x_grid: Grid | None,
        output: Output,
        tail: Tail,
        accumulate: Accumulate | None,
        geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
    ) -> None:
        super().__init__(holder, x_grid, output, tail, accumulate)
        self.geometry = geometry

    def _pack(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        stride, padding, dilation, groups = self.geometry
        geometry = (list(stride), list(padding), list(dilation), groups)
        scale, zeros, bias = self._scales()
        weight = self.holder.weight
        grid = self.x_grid or (1.0, 0)  # the packed form does not depend on it
        packed = torch.ops.onednn.qconv_prepack(weight, scale, *grid, *geometry, list(shape))
        return (packed, scale, zeros), (bias, *geometry, *self._out())

    def _out(self) -> tuple[Any, ...]:
        return self.output.scale, self.output.zero_point, self.output.dtype

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        first, second = self._arguments(tuple(x.shape))
        tail = self.tail
        scale, zero = self.x_grid or grid  # type: ignore[misc]
        if other is None:
            op = torch.ops.onednn.qconv_pointwise.default
            result = op(x, scale, zero, *first, *second, tail.name, tail.args, tail.algorithm)
        else:
            assert self.accumulate is not None
            end = (*self.accumulate.grid, "sum", 1.0, tail.name, tail.args, tail.algorithm)
            if self.accumulate.copy or not other.is_contiguous(memory_format=torch.channels_last):
                other = other.clone(memory_format=torch.channels_last)
            result = torch.ops.onednn.qconv2d_pointwise.binary(x, scale, zero, *first, other, *second, *end)
        assert isinstance(result, Tensor)
        return result


class LinearKernel(_Kernel):
    """`onednn.qlinear_pointwise`: product, an optional sum with a second tensor, an optional unary op."""

    def _pack(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        scale, zeros, bias = self._scales()
        rows = 1
        for size in shape[:-1]:
            rows *= size
        packed = torch.ops.onednn.qlinear_prepack(self.holder.weight, [rows, shape[-1]])
        out = (self.output.scale, self.output.zero_point, self.output.dtype)
        return (packed, scale, zeros), (bias, *out)

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        first, second = self._arguments(tuple(x.shape))
        tail = self.tail
        scale, zero = self.x_grid or grid  # type: ignore[misc]
        if other is None:
            op = torch.ops.onednn.qlinear_pointwise.default
            result = op(x, scale, zero, *first, *second, tail.name, tail.args, tail.algorithm)
        else:
            assert self.accumulate is not None
            end = (*self.accumulate.grid, "sum", 1.0, tail.name, tail.args, tail.algorithm)
            other = other.clone() if self.accumulate.copy else other
            result = torch.ops.onednn.qlinear_pointwise.binary(x, scale, zero, *first, other, *second, *end)
        assert isinstance(result, Tensor)
        return result
