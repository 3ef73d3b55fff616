"""Sums of products: convolutions, linears, products of two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from torch import Tensor, fx

from fxquant.integers.operands import FINER, INT32, Args, Weight, is_binary, one_scale, shape_of, spread
from fxquant.integers.program import Array, Scales
from fxquant.integers.reader import Reader, fractions
from fxquant.integers.scales import places_of
from fxquant.integers.values import Value, Whole


def conv(reader: Reader, node: fx.Node, at: Args) -> Value:
    x, weight = reader.whole(node, at["input"]), _weight(reader, node, at["weight"])
    transposed = "transpose" in str(node.target)
    rank = weight.integers.dim() - 2
    stride, dilation = spread(at["stride"], rank), spread(at["dilation"], rank)
    kernel = list(weight.integers.shape[2:])
    if isinstance(at["padding"], str):
        total = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
        before = [each // 2 if at["padding"] == "same" else 0 for each in total]
        after = [each - low if at["padding"] == "same" else 0 for each, low in zip(total, before, strict=True)]
    else:
        before = after = spread(at["padding"], rank)
    if transposed:
        more = spread(at["output_padding"], rank)
        reach = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
        before = [far - low for far, low in zip(reach, before, strict=True)]
        after = [low + extra for low, extra in zip(before, more, strict=True)]
    groups = int(at["groups"])
    outputs = weight.integers.shape[1] * groups if transposed else weight.integers.shape[0]
    fan = weight.integers.abs().long()
    per_output = fan.sum(dim=[axis for axis in range(fan.dim()) if axis != (1 if transposed else 0)])
    scale = weight.scale
    if transposed and weight.axis is not None:
        scale = scale * groups
    return _accumulate(
        *(reader, node, "conv", x, weight, scale, at["bias"], outputs, 1, int(per_output.max())),
        stride=stride,
        dilation=dilation,
        padding_before=before,
        padding_after=after,
        groups=groups,
        transposed=transposed,
    )


def linear(reader: Reader, node: fx.Node, at: Args) -> Value:
    x, weight = reader.whole(node, at["input"]), _weight(reader, node, at["weight"])
    fan = int(weight.integers.abs().long().sum(dim=1).max())
    axis = len(node.meta["val"].shape) - 1
    return _accumulate(reader, node, "linear", x, weight, weight.scale, at["bias"], len(weight.integers), axis, fan)


def _weight(reader: Reader, node: fx.Node, value: object) -> Weight:
    if not isinstance(value, Weight):
        reader.refuse(node, "its weight is not quantized")
    if value.axis is not None and value.axis != (1 if "transpose" in str(node.target) else 0):
        reader.refuse(node, "the scales of its weight do not go along its outputs")
    return value


def _accumulate(
    reader: Reader,
    node: fx.Node,
    op: str,
    x: Whole,
    weight: Weight,
    weight_scale: Scales,
    bias: object,
    outputs: int,
    axis: int,
    fan: int,
    **rest: object,
) -> Whole:
    """Sums of products; the bias is int32 on their scale, or on a finer one that the products are shifted to."""
    if x.axis is not None and not (op == "conv" and rest["groups"] == len(x.scale) and x.axis == 1):
        reader.refuse(node, "its input has a scale for each channel")
    each = len(x.scale) if x.axis is not None else 1
    inputs = [scale for scale in x.scale for _ in range(outputs // each)] if x.axis is not None else list(x.scale)
    many = max(len(inputs), len(weight_scale))
    scale = tuple(a * b for a, b in zip(_repeat(inputs, many), _repeat(weight_scale, many), strict=True))
    shift, whole_bias = 0, None
    if isinstance(bias, Tensor):
        shift, whole_bias = _bias(reader, node, fractions(bias), _repeat(scale, outputs))
    elif bias is not None:
        reader.refuse(node, "its bias is computed at run time")
    most = int(np.abs(whole_bias.astype(np.int64)).max()) if whole_bias is not None and whole_bias.size else 0
    bound = reader.check_bound(node, (fan * x.bound << shift) + most, is_binary(scale))
    constants: dict[str, Array] = {} if whole_bias is None else {"bias": whole_bias}
    name = reader.emit(
        op, node, [x.tensor], weight=weight.integers.numpy(), **constants, zero=x.zero, shift=shift, **rest
    )
    finer = tuple(each / 2**shift for each in scale)
    return Whole(tensor=name, scale=finer, axis=axis if len(finer) > 1 else None, zero=0, bound=bound)


def _repeat(values: Sequence[Fraction], count: int) -> Scales:
    return tuple(values) * (count // len(values))


def _bias(reader: Reader, node: fx.Node, bias: Scales, scale: Scales) -> tuple[int, Array]:
    steps = [value / step for value, step in zip(bias, scale, strict=True)]
    finer = max(places_of(step) for step in steps) if is_binary(scale) else 0
    if finer > FINER or max(abs(step) for step in steps) * 2**finer > INT32:
        finer = 0
    rounded = [round(step * 2**finer) for step in steps]
    if any(value != step * 2**finer for value, step in zip(rounded, steps, strict=True)):
        reader.note("biases are floats: they are rounded to int32 on the scale of the products")
    return finer, np.array([min(max(value, -INT32 - 1), INT32) for value in rounded], np.int32)


def matmul(reader: Reader, node: fx.Node, at: Args) -> Value:
    keys = ("self", "other" if "other" in at else "mat2")
    pair = [reader.centered(node, one_scale(reader, node, at[key])) for key in keys]
    depth = int(shape_of(node)[-1])
    bound = reader.check_bound(node, pair[0].bound * pair[1].bound * depth, is_binary(pair[0].scale + pair[1].scale))
    name = reader.emit("matmul", node, [value.tensor for value in pair])
    return Whole(tensor=name, scale=(pair[0].scale[0] * pair[1].scale[0],), axis=None, zero=0, bound=bound)
