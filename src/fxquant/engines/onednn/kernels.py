"""Single-pass int8 kernels on plain uint8/int8 tensors, on what this build of torch offers.

Each function has a plain formula (used while torch.compile traces, where Inductor fuses it, and where torch lacks the
fast op) and a fast path that goes through torch's quantized tensors without copying: their storage is shared.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import InputError
from fxquant.graph import torch_compat

Grid = tuple[float, int]  # scale, zero point

_QUANTIZED: dict[torch.dtype, Any] = {
    torch.uint8: getattr(torch, "quint8", None),
    torch.int8: getattr(torch, "qint8", None),
}
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_FEW = 4  # channels of a picture


def _plain(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a quantized tensor's integers, sharing its storage.

    (`x.view(dtype)` is faster, and crashes in later ops.)
    """
    if torch_compat.is_traced():
        return x.int_repr()
    return torch.empty(0, dtype=dtype, device=x.device).set_(
        x.untyped_storage(), x.storage_offset(), x.size(), x.stride()
    )


def _as_quantized(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """Integers as a quantized tensor, sharing their storage."""
    if torch_compat.is_traced():
        return torch._make_per_tensor_quantized_tensor(x, scale, zero_point)
    made = torch._empty_affine_quantized((0,), scale=scale, zero_point=zero_point, dtype=_QUANTIZED[x.dtype])
    return made.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())


@functools.cache
@torch_compat.on_plain_sizes
def _has_quantized() -> bool:
    """Tell whether torch has quantized tensors. It warns once that they will go; these kernels do without them then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _as_quantized(
                _plain(torch.quantize_per_tensor(torch.zeros(1, device="cpu"), 1.0, 0, torch.quint8), torch.uint8),
                1.0,
                0,
            )
        except (AttributeError, RuntimeError):
            return False
    return True


def _fast(x: Tensor) -> bool:
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and _has_quantized()


def _is_orderly(x: Tensor) -> bool:
    """Tell whether torch's quantized tensors keep the layout.

    Others are made contiguous there, unlike by a float op.
    """
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))


def quantize_channels_last(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype, nan: int = 0
) -> Tensor:
    """Do the same for a picture on its way to a convolution: channels go last while the bytes are few."""
    q = quantize(x, scale, zero_point, quant_min, quant_max, dtype, nan)
    if torch.compiler.is_compiling() or torch_compat.is_traced():
        return q
    if x.dim() != 4 or x.shape[1] > _FEW or not x.is_contiguous():
        return q
    # a stack of planes is twice as fast as torch's copy into this layout
    return torch.stack(q.unbind(1), dim=-1).permute(0, 3, 1, 2)


def quantize(
    x: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    nan: int = 0,
) -> Tensor:
    """clamp(round(x / scale) + zero_point) in one pass. NaN becomes the integer `nan`."""
    if x.dtype == torch.float32 and dtype in _QUANTIZED and _fast(x) and _is_orderly(x):
        step: Any = scale  # with the zero point both numbers, or tensors, in a trace
        zero: Any = zero_point
        x = _within(_without_nan(x, scale, zero_point, nan), scale, zero_point, quant_min, quant_max)
        q = _plain(torch.quantize_per_tensor(x, step, zero, _QUANTIZED[dtype]), dtype)
        return q if quant_max - quant_min == 255 else q.clamp_(quant_min, quant_max)
    _check_float(x)
    steps = torch.round(x.float() * (1.0 / scale)) + zero_point
    return torch.clamp(torch.nan_to_num(steps, nan, math.inf, -math.inf), quant_min, quant_max).to(dtype)


def _without_nan(x: Tensor, scale: float | Tensor, zero_point: int | Tensor, nan: int) -> Tensor:
    """Put NaN where an integer is: a cast in the QDQ graph makes 0 of it, and torch's kernel the largest one."""
    if isinstance(scale, Tensor) or isinstance(zero_point, Tensor):  # a range of its own, which is NaN as well
        return x
    if torch_compat.is_traced() or has_nan(x):
        return torch.nan_to_num(x, (nan - zero_point) * scale, math.inf, -math.inf)
    return x


def _within(x: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int) -> Tensor:
    """Hold numbers near their grid, where torch's kernel would take those beyond 32 bits for the lowest one."""
    if isinstance(scale, Tensor) or isinstance(zero_point, Tensor) or _saturates():
        return x
    return x.clamp((quant_min - zero_point - 1) * scale, (quant_max - zero_point + 1) * scale)


@functools.cache
@torch_compat.on_plain_sizes
def _saturates() -> bool:
    """Tell whether torch's kernel gives numbers of any size the nearest end of a grid.

    In torch 2.15 a zero point that is added to the largest number of 32 bits makes the lowest of it.
    """
    far = torch.quantize_per_tensor(torch.full((64,), 1e30, device="cpu"), 1.0, 128, torch.quint8)
    return bool((far.int_repr() == 255).all())


def has_nan(value: object) -> bool:
    """Tell whether a float tensor may have elements that are NaN, or infinite ones of both signs."""
    return isinstance(value, Tensor) and value.is_floating_point() and math.isnan(value.sum().item())


def quantize_channels(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    """Do the same with a scale for each channel."""
    _check_float(x)
    shape = [1] * x.dim()
    shape[axis] = -1
    steps = (x.float() * (1.0 / scales).view(shape)).round_().add_(zero_points.view(shape))
    return steps.clamp_(quant_min, quant_max).to(dtype)


def _check_float(x: Tensor) -> None:
    """What the QDQ graph refuses to quantize is refused here, too. So are other devices: no kernel follows there."""
    if not x.is_cpu and not torch.compiler.is_compiling():
        raise InputError(f"engine='onednn' runs on the CPU, and is given a tensor on {x.device}.")
    if x.dtype not in _FLOATS or x.layout != torch.strided:
        raise InputError(f"a dense tensor of float32 is quantized here, and this one is of {x.dtype}, {x.layout}.")


def dequantize(q: Tensor, scale: float | Tensor, zero_point: int | Tensor) -> Tensor:
    """(q - zero_point) * scale in one pass."""
    quick = (
        _QUANTIZED.get(q.dtype) is not None and _fast(q) and (torch_compat.is_traced() or q.numel()) and _is_orderly(q)
    )
    if quick and not isinstance(scale, Tensor) and not isinstance(zero_point, Tensor):
        return _as_quantized(q, scale, zero_point).dequantize()
    steps: Tensor = q.to(torch.float32) - zero_point
    return steps * scale


def max_pool2d(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Max pooling of integers; the grid does not matter."""
    if _QUANTIZED.get(q.dtype) is not None and _fast(q):
        return _plain(F.max_pool2d(_as_quantized(q, 1.0, 0), *args, **kwargs), q.dtype)
    in_float: Tensor = F.max_pool2d(q.to(torch.float32), *args, **kwargs)
    return in_float.to(q.dtype)


def add(a: Tensor, a_grid: Grid, b: Tensor, b_grid: Grid, grid: Grid, relu: bool = False) -> Tensor:
    """quantize(dequantize(a) + dequantize(b)), with a relu on the way if asked for."""
    if _fast(a) and works("add"):
        kernel = torch.ops.quantized.add_relu if relu else torch.ops.quantized.add
        return _binary(kernel, a, a_grid, b, b_grid, grid)
    total = dequantize(a, *a_grid) + dequantize(b, *b_grid)
    return _requantize(F.relu(total) if relu else total, grid, a.dtype)


def mul(a: Tensor, a_grid: Grid, b: Tensor, b_grid: Grid, grid: Grid, relu: bool = False) -> Tensor:
    """quantize(dequantize(a) * dequantize(b)), with a relu on the way if asked for."""
    if _fast(a) and works("mul"):
        kernel = torch.ops.quantized.mul_relu if relu else torch.ops.quantized.mul
        return _binary(kernel, a, a_grid, b, b_grid, grid)
    product = dequantize(a, *a_grid) * dequantize(b, *b_grid)
    return _requantize(F.relu(product) if relu else product, grid, a.dtype)


def _binary(kernel: Callable[..., Tensor], a: Tensor, a_grid: Grid, b: Tensor, b_grid: Grid, grid: Grid) -> Tensor:
    """Return one of torch's quantized binary kernels.

    They are fast on operands of one shape and layout: bytes are spread.
    """
    if not _are_alike(a, b):
        wide = torch.broadcast_tensors(a, b)
        layout = torch.channels_last if wide[0].dim() == 4 else torch.contiguous_format
        a, b = (
            x if _are_alike(x, y) else y.contiguous(memory_format=layout) for x, y in zip((a, b), wide, strict=True)
        )
    return _plain(kernel(_as_quantized(a, *a_grid), _as_quantized(b, *b_grid), *grid), a.dtype)


@torch_compat.on_plain_sizes
def _is_empty(x: Tensor) -> bool:
    return not x.numel()


@torch_compat.on_plain_sizes
def _are_alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape


def _requantize(x: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(dtype)
    return quantize(x, *grid, info.min, info.max, dtype)


@functools.cache
@torch_compat.on_plain_sizes
def works(name: str) -> bool:
    """Tell whether torch has the binary kernel and it agrees with the formula to one step; some builds' do not."""
    kernel = getattr(torch.ops.quantized, name, None) if _has_quantized() else None
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


def mean(
    q: Tensor, scale: float, zero_point: int, dim: int | list[int] | tuple[int, ...] | None, keepdim: bool
) -> Tensor:
    """Return the mean of the dequantized tensor, without dequantizing it."""
    return (q.mean(dim, keepdim, dtype=torch.float32) - zero_point) * scale


def quantize_dynamic(x: Tensor, symmetric: bool, smallest: float, most: int) -> tuple[Tensor, object, object]:
    """(integers, scale, zero point) on the grid of the tensor's own range: from 0 to `most`, uint8.

    Zero is in the middle if symmetric. The scale is not below `smallest`. In a trace, the grid is made of tensors.
    """
    _check_float(x)
    middle = (most + 1) // 2
    if _is_empty(x):
        return torch.empty_like(x, dtype=torch.uint8), 1.0, middle if symmetric else 0
    if torch_compat.is_traced():
        return _quantize_dynamic(x, symmetric, smallest, most)
    low, high = (float(value) for value in torch.aminmax(x))
    low, high = min(low, 0.0), max(high, 0.0)
    if not math.isfinite(high - low):  # the kernel gives nan then
        return torch.zeros_like(x, dtype=torch.uint8), math.nan, 0
    if symmetric:
        scale, zero = max(max(-low, high) / (most / 2), smallest), middle
    else:
        scale = max((high - low) / most, smallest)
        zero = min(max(-round(low / scale), 0), most)
    return quantize(x.float(), scale, zero, 0, most, torch.uint8), scale, zero


def _quantize_dynamic(x: Tensor, symmetric: bool, smallest: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same arithmetic, without a look at the values."""
    low, high = (value.double() for value in torch.aminmax(x))
    low, high = low.clamp(max=0), high.clamp(min=0)
    if symmetric:
        scale = (torch.maximum(-low, high) / (most / 2)).clamp(min=smallest)
        zero = torch.full((), (most + 1) // 2, dtype=torch.int64, device="cpu")
    else:
        scale = ((high - low) / most).clamp(min=smallest)
        zero = torch.nan_to_num(-torch.round(low / scale)).clamp(0, most).long()  # of nan there is no integer
    return quantize(x.float(), scale, zero, 0, most, torch.uint8), scale, zero
