"""Transposed convolutions on the int8 convolution kernel: one convolution gives all phases, which are then interleaved.

With stride s, output position s q + r - padding is a sum over the taps t = r + s m of the kernel, at inputs q - m. For
each phase r that is an ordinary convolution whose kernel holds every s-th tap, in reverse; the phases are its output
channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.core import compat
from fxquant.engines.compiled import qconv
from fxquant.engines.kernels import Grid
from fxquant.engines.onednn_kernels import Kernel, Output, Tail, overload
from fxquant.engines.pack import pack_conv
from fxquant.passes.quantized_weight import QuantizedWeight

Pair = tuple[int, int]


class TransposedKernel(Kernel):
    """A transposed convolution in one or two dimensions, dilation 1."""

    def __init__(
        self,
        holder: QuantizedWeight,
        x_grid: Grid | None,
        output: Output,
        tail: Tail,
        geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
    ) -> None:
        super().__init__(holder, x_grid, output, tail, None)
        self.geometry = geometry
        self.rank = len(geometry[0]) + 2

    def _phases(self) -> tuple[Tensor, Tensor, Tensor | None, tuple[list[int], list[int], list[int], int]]:
        """Weight, scale, bias and geometry of the convolution."""
        stride, _, _, groups = self.geometry
        holder = self.holder
        stride2: Pair = (1, stride[0]) if len(stride) == 1 else (stride[0], stride[1])
        weight = holder.integers.unsqueeze(2) if len(stride) == 1 else holder.integers
        phases = phase_weight(weight, stride2, groups)
        count = stride2[0] * stride2[1]
        scale = holder.weight_scale.expand(holder.weight_shape[1]).repeat(groups * count)
        bias = holder.dequantized("bias")
        if bias is not None:
            bias = bias.view(groups, 1, -1).expand(-1, count, -1).flatten().contiguous()
        return phases, scale, bias, ([1, 1], [size - 1 for size in phases.shape[2:]], [1, 1], groups)

    def _pack(self, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        phases, scale, bias, geometry = self._phases()
        packed = pack_conv(phases, scale, self._zero_point(), geometry, shape)
        head = (*(self.x_grid or ()), packed, scale, torch.zeros(scale.numel(), dtype=torch.int32))
        return head, (bias, *geometry, *self._end())

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        line = len(self.geometry[0]) == 1
        if line:
            x = x.unsqueeze(2)
        if torch.compiler.is_compiling():
            weight, scale, bias, geometry = self._phases()
            y = qconv(x, weight, scale, None, bias, *geometry, self._grids(grid), self.output.dtype, *self._tail())
        else:
            y = super()._traced(x, other, grid) if compat.is_traced() else self._op(x, other, grid)
        y = self._interleave(y, x)
        return y.squeeze(2) if line else y

    def _traced(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        return self.forward(x, other, grid)

    def _op(self, x: Tensor, other: Tensor | None, grid: Grid | None) -> Tensor:
        head, rest = self._arguments(x.shape, grid)
        return overload(torch.ops.onednn.qconv_pointwise, grid)(x, *head, *rest)  # type: ignore[no-any-return]

    def _interleave(self, y: Tensor, x: Tensor) -> Tensor:
        stride, padding, extra, groups = self.geometry
        kernel = self.holder.weight_shape[2:]
        if len(stride) == 1:
            stride, padding, extra, kernel = (1, *stride), (0, *padding), (0, *extra), (1, *kernel)
        batch, _, rows, columns = y.shape
        y = y.permute(0, 2, 3, 1).reshape(batch, rows, columns, groups, *stride, -1)
        y = y.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, rows * stride[0], columns * stride[1], -1)
        sizes = [
            (size - 1) * s - 2 * p + k + e
            for size, s, p, k, e in zip(x.shape[2:], stride, padding, kernel, extra, strict=True)
        ]
        y = y[:, padding[0] : padding[0] + sizes[0], padding[1] : padding[1] + sizes[1]]
        return y.permute(0, 3, 1, 2)


def phase_weight(weight: Tensor, stride: Pair, groups: int) -> Tensor:
    """(in, out / groups, *kernel) of a transposed convolution as (out * phases, in / groups, *kernel / stride)."""
    taps = [-(-size // s) for size, s in zip(weight.shape[2:], stride, strict=True)]
    wanted = [tap * s - size for tap, s, size in zip(taps, stride, weight.shape[2:], strict=True)]
    inputs, outputs = weight.shape[:2]
    padded = F.pad(weight, (0, wanted[1], 0, wanted[0]))
    split = padded.view(groups, inputs // groups, outputs, taps[0], stride[0], taps[1], stride[1])
    # tap r + s m of the kernel: m runs backwards, r is a phase
    split = split.flip(3, 5).permute(0, 4, 6, 2, 1, 3, 5)
    return split.reshape(-1, inputs // groups, taps[0], taps[1]).contiguous()


def fits(kernel: tuple[int, ...], stride: Any, padding: Any, extra: Any, dilation: Any) -> bool:
    """Whether the phases reach every output position; large output paddings go beyond."""
    if any(size != 1 for size in dilation):
        return False
    return all(k - p + e <= -(-k // s) * s for k, s, p, e in zip(kernel, stride, padding, extra, strict=True))
