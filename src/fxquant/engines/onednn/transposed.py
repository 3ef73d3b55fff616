"""Transposed convolutions on the int8 convolution kernel: one convolution gives all phases, which are then interleaved.

With stride s, output position s q + r - padding is a sum over the taps t = r + s m of the kernel, at inputs q - m. For
each phase r that is an ordinary convolution whose kernel holds every s-th tap, in reverse; the phases are its output
channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.engines.onednn.compiled import qconv
from fxquant.engines.onednn.kernel_modules import Kernel, Output, Tail, overload
from fxquant.engines.onednn.kernels import Grid
from fxquant.engines.onednn.pack import pack_conv
from fxquant.engines.onednn.pairs import halves
from fxquant.graph import torch_compat
from fxquant.numerics.weights.quantized_weight import QuantizedWeight


class TransposedKernel(Kernel):
    """A transposed convolution, dilation 1."""

    def __init__(
        self,
        holder: QuantizedWeight,
        x_grid: Grid | None,
        output: Output,
        tail: Tail,
        geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
        *,
        most: int,
    ) -> None:
        super().__init__(holder, x_grid, output, tail, None, most=most if holder.weight_shape[0] > geometry[3] else 0)
        self.geometry = geometry
        self.rank = len(geometry[0]) + 2
        self.groups = geometry[3]

    def _phases(self) -> tuple[Tensor, Tensor, Tensor | None, tuple[list[int], list[int], list[int], int]]:
        """Weight, scale, bias and geometry of the convolution."""
        stride, _, _, groups = self.geometry
        holder = self.holder
        line = len(stride) == 1
        phases = phase_weight(
            holder.integers.unsqueeze(2) if line else holder.integers, (1, *stride) if line else stride, groups
        )
        count = math.prod(stride)
        scale = holder.weight_scale.expand(holder.weight_shape[1]).repeat(groups * count)
        bias = self._bias()
        if bias is not None:
            bias = bias.view(groups, 1, -1).expand(-1, count, -1).flatten().contiguous()
        ones = [1] * (phases.dim() - 2)
        return phases, scale, bias, (ones, [size - 1 for size in phases.shape[2:]], ones, groups)

    def _packed(self, shape: tuple[int, ...], in_halves: bool) -> tuple[tuple[object, ...], tuple[object, ...]]:
        phases, scale, bias, geometry = self._phases()
        if in_halves:
            phases = halves(phases)
        packed = pack_conv(phases, scale, self._zero_point(), geometry, shape)
        head = (*(self.x_grid or ()), packed, scale, torch.zeros(scale.numel(), dtype=torch.int32, device=scale.device))
        return head, (bias, *geometry, *self._end())

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        line = len(self.geometry[0]) == 1
        if line:
            x = x.unsqueeze(2)
        if torch.compiler.is_compiling():
            weight, scale, bias, geometry = self._phases()
            end = (self._grids(grid), self.output.dtype, *self._tail(), self.most)
            y = qconv(x, weight, scale, None, bias, *geometry, *end)
        else:
            y = super()._traced(x, other, grid) if torch_compat.is_traced() else self._op(x, other, grid)
        y = self._interleave(y, x)
        return y.squeeze(2) if line else y

    def _traced(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        return self.forward(x, other, grid)

    def _op(self, x: Tensor, other: Tensor | None, grid: Grid | None) -> Tensor:
        head, rest = self._arguments(x, grid)
        return overload(torch.ops.onednn.qconv_pointwise, grid)(*head, *rest)

    def _interleave(self, y: Tensor, x: Tensor) -> Tensor:
        stride, padding, extra, groups = self.geometry
        kernel = self.holder.weight_shape[2:]
        if len(stride) == 1:
            stride, padding, extra, kernel = (1, *stride), (0, *padding), (0, *extra), (1, *kernel)
        batch, _, *sizes = y.shape
        dims = len(sizes)
        y = y.movedim(1, -1).reshape(batch, *sizes, groups, *stride, -1)
        places = (place for dim in range(dims) for place in (1 + dim, dims + 2 + dim))  # a size, then its phases
        y = y.permute(0, *places, dims + 1, -1)
        y = y.reshape(batch, *(size * s for size, s in zip(sizes, stride, strict=True)), -1)
        parts = zip(x.shape[2:], stride, padding, kernel, extra, strict=True)
        kept = (slice(p, (size - 1) * s - p + k + e) for size, s, p, k, e in parts)
        return y[(slice(None), *kept)].movedim(-1, 1)


def phase_weight(weight: Tensor, stride: tuple[int, ...], groups: int) -> Tensor:
    """(in, out / groups, *kernel) of a transposed convolution as (out * phases, in / groups, *kernel / stride)."""
    taps = [-(-size // s) for size, s in zip(weight.shape[2:], stride, strict=True)]
    wanted = [tap * s - size for tap, s, size in zip(taps, stride, weight.shape[2:], strict=True)]
    inputs, outputs = weight.shape[:2]
    padded = F.pad(weight, [width for size in reversed(wanted) for width in (0, size)])
    kernel = (part for pair in zip(taps, stride, strict=True) for part in pair)
    split = padded.view(groups, inputs // groups, outputs, *kernel)
    # tap r + s m of the kernel: m runs backwards, r is a phase
    at_taps, at_phases = tuple(range(3, split.dim(), 2)), tuple(range(4, split.dim(), 2))
    split = split.flip(*at_taps).permute(0, *at_phases, 2, 1, *at_taps)
    return split.reshape(-1, inputs // groups, *taps).contiguous()


def fits(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], extra: Sequence[int], dilation: Sequence[int]
) -> bool:
    """Tell whether the phases reach every output position; large output paddings go beyond."""
    if any(size != 1 for size in dilation):
        return False
    return all(k - p + e <= -(-k // s) * s for k, s, p, e in zip(kernel, stride, padding, extra, strict=True))
