"""The ops of a converted graph, in torch's terms, and their schemas.

    quantize    clamp(round(x / scale) + zero_point, quant_min, quant_max)
    dequantize  (q - zero_point) * scale

Those of `quantized_decomposed` are torch's own; they are registered from here where torch does not have them any more.
`fxquant::quantize_per_tensor` and `quantize_per_channel` are the same with a rounding mode, for hardware that does not
round half to even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fxquant.graph import nibbles
from fxquant.graph.rounding import round_to

Number = float | Tensor
_QPARAMS = "int quant_min, int quant_max, ScalarType dtype"


def _quantize(x: Tensor, scale: Number, zero_point: Number, low: int, high: int, dtype: torch.dtype) -> Tensor:
    inverse = 1.0 / scale
    return torch.clamp(torch.round(x.float() * inverse) + zero_point, low, high).to(dtype)


def _dequantize(q: Tensor, scale: Number, zero_point: Number, out_dtype: torch.dtype | None) -> Tensor:
    steps: Tensor = q.to(torch.float32) - zero_point
    values: Tensor = steps * scale
    return values.to(out_dtype or torch.float32)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


def _quantize_per_tensor(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    return _quantize(input, scale, zero_point, quant_min, quant_max, dtype)


def _dequantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return _dequantize(input, scale, zero_point, out_dtype)


def _quantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    along = _along(scales, input, axis), _along(zero_points, input, axis)
    return _quantize(input, *along, quant_min, quant_max, dtype)


def _dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    zero = 0 if zero_points is None else _along(zero_points, input, axis)
    return _dequantize(input, _along(scales, input, axis), zero, out_dtype)


def _dequantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> Tensor:
    grouped = input.reshape(*scales.shape, group_size)
    zero = 0 if zero_points is None else zero_points.unsqueeze(-1)
    return _dequantize(grouped, scales.unsqueeze(-1), zero, output_dtype).reshape(input.shape)


def _choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    low, high = torch.aminmax(input.float())
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = ((high - low) / (quant_max - quant_min)).clamp(min=eps)
    zero = (quant_min - torch.round(low / scale)).clamp(quant_min, quant_max)
    return scale.double().reshape(1), zero.to(torch.int64).reshape(1)


def _choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    largest = input.float().abs().max()
    scale = (largest / ((quant_max - quant_min) / 2)).clamp(min=eps)
    zero = torch.full((1,), (quant_max + quant_min + 1) // 2, dtype=torch.int64, device=input.device)
    return scale.double().reshape(1), zero


_Ops = Mapping[str, tuple[str, Callable[..., object]]]  # schema and function by name

_DECOMPOSED: _Ops = {
    "quantize_per_tensor": (f"(Tensor input, float scale, int zero_point, {_QPARAMS}) -> Tensor", _quantize_per_tensor),
    "dequantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {_QPARAMS}, *, ScalarType? out_dtype=None) -> Tensor",
        _dequantize_per_tensor,
    ),
    "quantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_QPARAMS}) -> Tensor",
        _quantize_per_tensor,
    ),
    "dequantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_QPARAMS}, *, ScalarType? out_dtype=None) -> Tensor",
        _dequantize_per_tensor,
    ),
    "quantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {_QPARAMS}) -> Tensor",
        _quantize_per_channel,
    ),
    "dequantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor? zero_points, int axis, {_QPARAMS}, *, ScalarType? out_dtype=None)"
        " -> Tensor",
        _dequantize_per_channel,
    ),
    "dequantize_per_channel_group": (
        f"(Tensor input, Tensor scales, Tensor? zero_points, {_QPARAMS}, int group_size, ScalarType output_dtype)"
        " -> Tensor",
        _dequantize_per_channel_group,
    ),
    "choose_qparams.tensor": (
        "(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        _choose_qparams,
    ),
    "choose_qparams_symmetric.tensor": (
        "(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        _choose_qparams_symmetric,
    ),
}


def _quantize_rounding(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype, rounding: str
) -> Tensor:
    rounded = round_to(input.float() * (1.0 / scale), rounding)
    return torch.clamp(rounded + zero_point, quant_min, quant_max).to(dtype)


def _quantize_channel_rounding(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    rounding: str,
) -> Tensor:
    rounded = round_to(input.float() * (1.0 / _along(scales, input, axis)), rounding)
    return torch.clamp(rounded + _along(zero_points, input, axis), quant_min, quant_max).to(dtype)


_OWN: _Ops = {
    "quantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {_QPARAMS}, str rounding) -> Tensor",
        _quantize_rounding,
    ),
    "quantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {_QPARAMS}, str rounding) -> Tensor",
        _quantize_channel_rounding,
    ),
    "unpack": ("(Tensor packed, int[] tail, bool signed) -> Tensor", nibbles.unpack),
}


def register_decomposed(namespace: str) -> torch.library.Library:
    """Register the ops of a converted graph under a namespace. They live as long as the result."""
    return _register(namespace, _DECOMPOSED)


def register_own() -> torch.library.Library:
    """Register fxquant's own: quantize with a rounding mode, and integers of four bits out of bytes."""
    return _register("fxquant", _OWN)


def _register(namespace: str, table: _Ops) -> torch.library.Library:
    library = torch.library.Library(namespace, "DEF")
    for name, (schema, function) in table.items():
        library.define(f"{name}{schema}")
        library.impl(name, function, "CompositeExplicitAutograd")
    return library


def plain_functions(namespace: str) -> dict[object, Callable[..., object]]:
    """Return what the ops compute, as functions of torch's plain ops: those of `namespace`, and fxquant's own."""
    found: dict[object, Callable[..., object]] = {}
    for owner, table in ((namespace, _DECOMPOSED), ("fxquant", _OWN)):
        for name, (_, function) in table.items():
            packet, _, overload = name.partition(".")
            found[getattr(getattr(getattr(torch.ops, owner), packet), overload or "default")] = function
    return found
