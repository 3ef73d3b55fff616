"""Single-pass int8 kernels on plain uint8/int8 tensors, on what this build of torch offers.

Each function has a plain formula (used while torch.compile traces, where Inductor fuses it, and where torch lacks the
fast op) and a fast path that goes through torch's quantized tensors without copying: their storage is shared.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[float, int]  # scale, zero point

_QUANTIZED: dict[torch.dtype, Any] = {
    torch.uint8: getattr(torch, "quint8", None),
    torch.int8: getattr(torch, "qint8", None),
}
_HAS_QUANTIZED = hasattr(torch, "quantize_per_tensor") and hasattr(torch, "_empty_affine_quantized")


_SMALLEST = torch.finfo(torch.float32).eps  # of a scale found at run time


def _plain(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A quantized tensor's integers, sharing its storage."""
    return torch.empty(0, dtype=dtype).set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())


def _as_quantized(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """Integers as a quantized tensor, sharing their storage."""
    made = torch._empty_affine_quantized((0,), scale=scale, zero_point=zero_point, dtype=_QUANTIZED[x.dtype])
    return made.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())


def _fast(x: Tensor) -> bool:
    return _HAS_QUANTIZED and not torch.compiler.is_compiling() and x.device.type == "cpu"


def quantize(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype) -> Tensor:
    """clamp(round(x / scale) + zero_point) in one pass."""
    if x.dtype == torch.float32 and _QUANTIZED.get(dtype) is not None and _fast(x):
        q = _plain(torch.quantize_per_tensor(x, scale, zero_point, _QUANTIZED[dtype]), dtype)
        info = torch.iinfo(dtype)
        return q if (quant_min, quant_max) == (info.min, info.max) else q.clamp_(quant_min, quant_max)
    steps = torch.round(x.float() * (1.0 / scale)) + zero_point
    return torch.clamp(steps, quant_min, quant_max).to(dtype)


def dequantize(q: Tensor, scale: float, zero_point: int) -> Tensor:
    """(q - zero_point) * scale in one pass."""
    if _QUANTIZED.get(q.dtype) is not None and _fast(q) and q.numel():
        return _as_quantized(q, scale, zero_point).dequantize()
    steps: Tensor = q.to(torch.float32) - zero_point
    return steps * scale


def max_pool2d(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Max pooling of integers; the grid does not matter."""
    if _QUANTIZED.get(q.dtype) is not None and _fast(q):
        return _plain(F.max_pool2d(_as_quantized(q, 1.0, 0), *args, **kwargs), q.dtype)
    pooled: Tensor = F.max_pool2d(q.to(torch.float32), *args, **kwargs)
    return pooled.to(q.dtype)


def add(a: Tensor, a_grid: Grid, b: Tensor, b_grid: Grid, grid: Grid, relu: bool = False) -> Tensor:
    """quantize(dequantize(a) + dequantize(b)), with a relu on the way if asked for."""
    if a.shape == b.shape and _fast(a) and works("add"):
        kernel = torch.ops.quantized.add_relu if relu else torch.ops.quantized.add
        return _plain(kernel(_as_quantized(a, *a_grid), _as_quantized(b, *b_grid), *grid), a.dtype)
    total = dequantize(a, *a_grid) + dequantize(b, *b_grid)
    return _requantize(F.relu(total) if relu else total, grid, a.dtype)


def mul(a: Tensor, a_grid: Grid, b: Tensor, b_grid: Grid, grid: Grid, relu: bool = False) -> Tensor:
    """quantize(dequantize(a) * dequantize(b)), with a relu on the way if asked for."""
    if a.shape == b.shape and _fast(a) and works("mul"):
        kernel = torch.ops.quantized.mul_relu if relu else torch.ops.quantized.mul
        return _plain(kernel(_as_quantized(a, *a_grid), _as_quantized(b, *b_grid), *grid), a.dtype)
    product = dequantize(a, *a_grid) * dequantize(b, *b_grid)
    return _requantize(F.relu(product) if relu else product, grid, a.dtype)


def _requantize(x: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(dtype)
    return quantize(x, *grid, info.min, info.max, dtype)


@functools.cache
def works(name: str) -> bool:
    """Whether torch has the binary kernel and it agrees with the formula to one step; some builds' do not."""
    kernel = getattr(torch.ops.quantized, name, None) if _HAS_QUANTIZED else None
    if kernel is None:
        return False
    a, b = torch.arange(256, dtype=torch.uint8), torch.arange(255, -1, -1, dtype=torch.uint8).roll(100)
    x, y = (a.float() - 10) * 0.1, (b.float() - 100) * 0.05
    expected = quantize(x + y if name == "add" else x * y, 0.3, 60, 0, 255, torch.uint8)
    try:
        actual = _plain(kernel(_as_quantized(a, 0.1, 10), _as_quantized(b, 0.05, 100), 0.3, 60), torch.uint8)
    except RuntimeError:
        return False
    return bool((actual.int() - expected.int()).abs().max() <= 1)


def mean(q: Tensor, scale: float, zero_point: int, dim: Any, keepdim: bool) -> Tensor:
    """The mean of the dequantized tensor, without dequantizing it."""
    return (q.mean(dim, keepdim, dtype=torch.float32) - zero_point) * scale


def quantize_dynamic(x: Tensor, symmetric: bool) -> tuple[Tensor, float, int]:
    """(integers, scale, zero point) on the grid of the tensor's own range: uint8, zero in the middle if symmetric."""
    low, high = (float(value) for value in torch.aminmax(x))
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        scale, zero = max(max(-low, high) / 127.5, _SMALLEST), 128
    else:
        scale = max((high - low) / 255.0, _SMALLEST)
        zero = min(max(-round(low / scale), 0), 255)
    return quantize(x.float(), scale, zero, 0, 255, torch.uint8), scale, zero
