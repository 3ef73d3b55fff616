"""How the ops of a converted graph are spelled in ONNX.

    quantize, dequantize       QuantizeLinear, DequantizeLinear; a grid smaller than its dtype is kept by a Clip
    choose_qparams             DynamicQuantizeLinear where its grid is the whole of uint8, plain arithmetic elsewhere
    linear on int8 tensors     Gemm on two dimensions, for which runtimes have an int8 kernel that takes the bias;
                               MatMulInteger where the range of the input is found at run time

torch.onnx has translations of its own for some of these, without the grids, tensor scales and groups used here.
Imported only when a model is exported, since onnxscript is an optional dependency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18, opset21
from onnxscript.function_libs.torch_lib.ops import nn

from fxquant.export.onnx.bags import embedding_bag
from fxquant.export.onnx.integers import divide, one_hot
from fxquant.graph import torch_compat

Value = Any  # a tensor while the graph is being built
op: Any = opset18  # what torch.onnx builds with; it raises the graph to the opset asked for
_FLOAT = int(ir.DataType.FLOAT)


def translations(*, gemm: bool) -> dict[Callable[..., object], Callable[..., object]]:
    """Return the custom translation table for torch.onnx.export. `gemm` brings int8 linears to two dimensions."""
    return {
        torch_compat.QUANTIZE: quantize,
        torch_compat.QUANTIZE_TENSOR: quantize_tensor,
        torch_compat.QUANTIZE_ROUNDING: quantize_rounding,
        torch_compat.QUANTIZE_CHANNEL: quantize_channel,
        torch_compat.DEQUANTIZE: dequantize,
        torch_compat.DEQUANTIZE_TENSOR: dequantize_tensor,
        torch_compat.DEQUANTIZE_CHANNEL: dequantize_channel,
        torch_compat.DEQUANTIZE_GROUP: dequantize_group,
        torch_compat.CHOOSE_QPARAMS: choose_qparams,
        torch_compat.CHOOSE_QPARAMS_SYMMETRIC: choose_qparams_symmetric,
        torch.ops.aten.linear.default: linear_on_rows if gemm else linear,
        torch.ops.aten.scaled_dot_product_attention.default: attention,
        torch.ops.aten.embedding_bag.padding_idx: embedding_bag,
        torch.ops.aten._embedding_bag.default: embedding_bag,
        torch.ops.aten._embedding_bag_forward_only.default: embedding_bag,
        torch.ops.aten.div.Tensor_mode: divide,
        torch.ops.aten.div.Scalar_mode: divide,
        torch.ops.aten.one_hot.default: one_hot,
    }


def quantize(input: Value, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int) -> Value:
    x, grid = _as_float(input), _grid(dtype)
    if (quant_min, quant_max) != grid and grid[1] - grid[0] > 255:
        # runtimes have no Clip of 16-bit integers
        bounds = (_constant((end - zero_point) * scale, _FLOAT) for end in (quant_min, quant_max))
        x = op.Clip(x, *bounds)
    q = op.QuantizeLinear(x, _constant(scale, _FLOAT), _constant(zero_point, dtype))
    return _narrow(q, quant_min, quant_max, dtype)


def dequantize(
    input: Value,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    x = op.DequantizeLinear(input, _constant(scale, _FLOAT), _constant(zero_point, dtype))
    return _as_dtype(x, out_dtype)


def quantize_tensor(input: Value, scale: Value, zero_point: Value, quant_min: int, quant_max: int, dtype: int) -> Value:
    made = scale.producer()
    if made is not None and made.op_type == "DynamicQuantizeLinear" and made.inputs[0] is input:
        return made.outputs[0]
    q = op.QuantizeLinear(_as_float(input), scale, zero_point)
    return _narrow(q, quant_min, quant_max, dtype)


def dequantize_tensor(
    input: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    return _as_dtype(op.DequantizeLinear(input, scale, zero_point), out_dtype)


def quantize_rounding(
    input: Value, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int, rounding: str
) -> Value:
    steps = op.Mul(_as_float(input), _constant(1.0 / scale, _FLOAT))
    rounded = op.Floor(steps)
    if rounding == "half_up":  # not floor(steps + 0.5): see graph/rounding.py
        is_up = op.GreaterOrEqual(op.Sub(steps, rounded), _constant(0.5, _FLOAT))
        rounded = op.Add(rounded, op.Cast(is_up, to=_FLOAT))
    shifted = op.Add(rounded, _constant(zero_point, _FLOAT))
    clipped = op.Clip(shifted, _constant(quant_min, _FLOAT), _constant(quant_max, _FLOAT))
    return op.Cast(clipped, to=dtype)


def quantize_channel(
    input: Value, scales: Value, zero_points: Value, axis: int, quant_min: int, quant_max: int, dtype: int
) -> Value:
    zero = op.Cast(zero_points, to=dtype)
    q = op.QuantizeLinear(_as_float(input), op.Cast(scales, to=_FLOAT), zero, axis=axis)
    return _narrow(q, quant_min, quant_max, dtype)


def dequantize_channel(
    input: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Value:
    zero = _zeros(scales, dtype) if zero_points is None else op.Cast(zero_points, to=dtype)
    return _as_dtype(op.DequantizeLinear(input, op.Cast(scales, to=_FLOAT), zero, axis=axis), out_dtype)


def dequantize_group(
    input: Value,
    scales: Value,
    zero_points: Value | None,
    quant_min: int,
    quant_max: int,
    dtype: int,
    group_size: int,
    output_dtype: int,
) -> Value:
    zero = _zeros(scales, dtype) if zero_points is None else op.Cast(zero_points, to=dtype)
    blocks: Any = opset21
    axis = len(input.shape) - 1
    x = blocks.DequantizeLinear(input, op.Cast(scales, to=_FLOAT), zero, axis=axis, block_size=group_size)
    return _as_dtype(x, output_dtype)


def choose_qparams(input: Value, quant_min: int, quant_max: int, eps: float, dtype: int) -> tuple[Value, Value]:
    x = _as_float(input)
    if dtype == ir.DataType.UINT8 and (quant_min, quant_max) == (0, 255):
        _, scale, zero_point = op.DynamicQuantizeLinear(x)
        return scale, zero_point
    zero = _constant(0.0, _FLOAT)
    low, high = op.Min(op.ReduceMin(x, keepdims=0), zero), op.Max(op.ReduceMax(x, keepdims=0), zero)
    scale = op.Max(op.Div(op.Sub(high, low), _constant(quant_max - quant_min, _FLOAT)), _constant(eps, _FLOAT))
    steps = op.Sub(_constant(quant_min, _FLOAT), op.Round(op.Div(low, scale)))
    clipped = op.Clip(steps, _constant(quant_min, _FLOAT), _constant(quant_max, _FLOAT))
    return scale, op.Cast(clipped, to=dtype)


def choose_qparams_symmetric(
    input: Value, quant_min: int, quant_max: int, eps: float, dtype: int
) -> tuple[Value, Value]:
    largest = op.ReduceMax(op.Abs(_as_float(input)), keepdims=0)
    scale = op.Max(op.Div(largest, _constant((quant_max - quant_min) / 2, _FLOAT)), _constant(eps, _FLOAT))
    return scale, _constant((quant_max + quant_min + 1) // 2, dtype)


def linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    if len(input.shape) == 2:
        return op.Gemm(input, weight, bias, transB=1)
    y = op.MatMul(input, op.Transpose(weight, perm=[1, 0]))
    return y if bias is None else op.Add(y, bias)


def linear_on_rows(input: Value, weight: Value, bias: Value | None = None) -> Value:
    made = input.producer() if len(input.shape) > 2 and bias is not None else None
    if made is not None and made.op_type == "DequantizeLinear" and _is_constant(made.inputs[1]):
        # reshaped as integers, so that nothing stands between the pair and the Gemm
        rows = op.Reshape(made.inputs[0], _constant([-1, input.shape[-1]], int(ir.DataType.INT64)))
        y = op.Gemm(op.DequantizeLinear(rows, *made.inputs[1:]), weight, bias, transB=1)
        kept = op.Shape(made.inputs[0], start=0, end=-1)
        return op.Reshape(y, op.Concat(kept, _constant([weight.shape[0]], int(ir.DataType.INT64)), axis=0))
    return linear_on_integers(input, weight, bias)


def linear_on_integers(input: Value, weight: Value, bias: Value | None = None) -> Value:
    """Where the input's range is found at run time: a pair would be multiplied in float."""
    x, w = input.producer(), weight.producer()
    pairs = all(made is not None and made.op_type == "DequantizeLinear" for made in (x, w))
    if not pairs or _is_constant(x.inputs[1]) or w.attributes.get_int("block_size", 0) or not _is_zero(w.inputs[2]):
        return linear(input, weight, bias)
    sums = op.MatMulInteger(x.inputs[0], op.Transpose(w.inputs[0], perm=[1, 0]), x.inputs[2])
    y = op.Mul(op.Cast(sums, to=_FLOAT), op.Mul(x.inputs[1], w.inputs[1]))
    return y if bias is None else op.Add(y, bias)


def attention(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Where a mask leaves a query no key, torch gives 0, and a softmax the mean of all values, or NaN."""
    settings = (dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None or _is_open(attn_mask):
        return _weighted(query, key, value, attn_mask, *settings)
    given = attn_mask
    if attn_mask.dtype != ir.DataType.BOOL:
        lowest = _constant(attn_mask.dtype.min, int(attn_mask.dtype))
        given, attn_mask = op.GreaterOrEqual(attn_mask, lowest), op.Max(attn_mask, lowest)
    # not the largest number of the mask: that of a row of -inf is the least finite one in OpenVINO
    found = op.ReduceMax(op.Cast(given, to=_FLOAT), _constant([-1], int(ir.DataType.INT64)), keepdims=1)
    is_open = op.Cast(found, to=int(ir.DataType.BOOL))
    made = _weighted(query, key, value, attn_mask, *settings)
    return op.Where(is_open, made, _constant(0.0, int(query.dtype)))


def _is_open(mask: Value) -> bool:
    """Tell whether a mask is known to leave every query a key."""
    held = mask.const_value
    if held is None:
        return False
    values = held.numpy()
    return bool((values if mask.dtype == ir.DataType.BOOL else values > -math.inf).any(-1).all())


def _weighted(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Value:
    is_plain = attn_mask is None or attn_mask.dtype == query.dtype
    rank, width = len(key.shape), query.shape[-1]
    if is_causal or enable_gqa or not is_plain or not isinstance(width, int):
        return nn.aten_scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    # torch.onnx scales both operands and transposes through shapes read at run time: four passes more
    factor = _constant(1.0 / math.sqrt(width) if scale is None else scale, int(query.dtype))
    keys = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(op.Mul(query, factor), keys)
    if attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _is_zero(value: Value) -> bool:
    """Tell whether a zero point is known to be zero; those of symmetric weights are written as constants."""
    made = value.producer() if value is not None else None
    constant = made.attributes.get_tensor("value", None) if made is not None and made.op_type == "Constant" else None
    return constant is not None and not np.any(constant.numpy())


def _is_constant(value: Value) -> bool:
    made = value.producer()
    return value.const_value is not None or (made is not None and made.op_type == "Constant")


def _constant(value: object, dtype: int) -> Value:
    return op.Constant(value=ir.tensor(value, dtype=ir.DataType(dtype)))


def _zeros(like: Value, dtype: int) -> Value:
    return _constant(np.zeros([int(n) for n in like.shape], ir.DataType(dtype).numpy()), dtype)


def _as_float(x: Value) -> Value:
    return x if x.dtype == ir.DataType.FLOAT else op.Cast(x, to=_FLOAT)


def _as_dtype(x: Value, dtype: int | None) -> Value:
    return x if dtype in (None, -1, _FLOAT) else op.Cast(x, to=dtype)


def _grid(dtype: int) -> tuple[int, int]:
    info = np.iinfo(ir.DataType(dtype).numpy())
    return int(info.min), int(info.max)


def _narrow(q: Value, quant_min: int, quant_max: int, dtype: int) -> Value:
    low, high = _grid(dtype)
    if (quant_min, quant_max) == (low, high) or high - low > 255:
        return q
    return op.Clip(q, _constant(quant_min, dtype), _constant(quant_max, dtype))
