"""What each step of a program computes: a function of its tensors, constants and attributes, on int64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fxquant.integers import arithmetic
from fxquant.integers.program import Array

Inputs = list[Array]
Named = Mapping[str, Any]
_ACCUMULATOR = 2**31


def _sums(values: Array, constants: Named, shift: int, channel_last: bool) -> Array:
    """Products with the bias of the accumulator, which has 32 bits."""
    total = values << shift
    bias = constants.get("bias")
    if bias is not None:
        wide = bias.astype(np.int64)
        total = total + (wide if channel_last else wide.reshape(-1, *(1,) * (values.ndim - 2)))
    if total.size and (total.max() >= _ACCUMULATOR or total.min() < -_ACCUMULATOR):
        raise OverflowError("a sum does not fit in 32 bits")
    return total


def conv(inputs: Inputs, constants: Named, at: Named) -> Array:
    x, weight = inputs[0] - at["zero"], constants["weight"].astype(np.int64)
    stride = at["stride"]
    if at["transposed"]:
        x, weight = arithmetic.spread(x, stride), arithmetic.transpose_weight(weight, at["groups"])
        stride = [1] * len(stride)
    x = arithmetic.pad(x, at["padding_before"], at["padding_after"], 0)
    if x.ndim < 2 or x.shape[1] != weight.shape[1] * at["groups"]:
        raise ValueError(f"its weight takes {weight.shape[1] * at['groups']} channels")
    total = arithmetic.convolve(x, weight, stride, at["dilation"], at["groups"])
    return _sums(total, constants, at["shift"], channel_last=False)


def linear(inputs: Inputs, constants: Named, at: Named) -> Array:
    weight = constants["weight"].astype(np.int64)
    return _sums((inputs[0] - at["zero"]) @ weight.T, constants, at["shift"], channel_last=True)


def matmul(inputs: Inputs, constants: Named, at: Named) -> Array:
    return _sums(inputs[0] @ inputs[1], constants, 0, channel_last=True)


def add(inputs: Inputs, constants: Named, at: Named) -> Array:
    first, second = (x << shift for x, shift in zip(inputs, at["shifts"], strict=True))
    total: Array = first + at["sign"] * second
    return total


def mul(inputs: Inputs, constants: Named, at: Named) -> Array:
    return inputs[0] * inputs[1]


def center(inputs: Inputs, constants: Named, at: Named) -> Array:
    found: Array = inputs[0] - at["zero"]
    return found


def clamp(inputs: Inputs, constants: Named, at: Named) -> Array:
    x = inputs[0] << at["shift"]
    low, high = at["low"], at["high"]
    x = x if low is None else np.maximum(x, low)
    found: Array = x if high is None else np.minimum(x, high)
    return found


def leaky_relu(inputs: Inputs, constants: Named, at: Named) -> Array:
    below = inputs[0] * at["multiplier"]
    below = arithmetic.keep_mantissa(below) if at["mantissa"] else below
    return np.where(inputs[0] < 0, below, inputs[0] << at["shift"])


def hardswish(inputs: Inputs, constants: Named, at: Named) -> Array:
    product = arithmetic.keep_mantissa(inputs[0] * inputs[1]) << at["places"]
    return arithmetic.divide_mantissa(product, 6)


def requantize(inputs: Inputs, constants: Named, at: Named) -> Array:
    shape = (1,) if at["axis"] is None else (-1, *(1,) * (inputs[0].ndim - 1 - at["axis"]))
    factor, shift = (constants[name].astype(np.int64).reshape(shape) for name in ("multiplier", "shift"))
    found = arithmetic.requantize(inputs[0], factor, shift, at["divisor"], at["rounding"])
    return found if at["low"] is None else np.clip(found + at["zero_point"], at["low"], at["high"])


def table(inputs: Inputs, constants: Named, at: Named) -> Array:
    found: Array = constants["table"].astype(np.int64)[inputs[0] - at["low"]]
    return found


def max_pool(inputs: Inputs, constants: Named, at: Named) -> Array:
    x = arithmetic.pad(inputs[0], at["padding_before"], at["padding_after"], np.iinfo(np.int64).min)
    rank = len(at["kernel"])
    views = arithmetic.windows(x, at["kernel"], at["stride"], at["dilation"])
    most: Array = views.max(axis=tuple(range(-rank, 0)))
    return most


def sum_windows(inputs: Inputs, constants: Named, at: Named) -> Array:
    x = arithmetic.pad(inputs[0], at["padding_before"], at["padding_after"], 0) if "padding_before" in at else inputs[0]
    x = arithmetic.sum_windows(x, at["axes"], at["starts"], at["ends"])
    for axis, gains in zip(at["axes"], at["gains"], strict=True):
        x = x * np.array(gains, np.int64).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return x if at["keep"] else x.reshape([size for axis, size in enumerate(x.shape) if axis not in at["axes"]])


def blend(inputs: Inputs, constants: Named, at: Named) -> Array:
    axis = at["axis"]
    shape = (-1, *(1,) * (inputs[0].ndim - 1 - axis))
    parts = (
        np.take(inputs[0], index, axis=axis) * np.array(weights, np.int64).reshape(shape)
        for index, weights in zip(at["indices"], at["weights"], strict=True)
    )
    total: Array = sum(parts)
    return total


def take(inputs: Inputs, constants: Named, at: Named) -> Array:
    found: Array = np.take(inputs[0], at["index"], axis=at["axis"])
    return found


def concat(inputs: Inputs, constants: Named, at: Named) -> Array:
    return np.concatenate(inputs, axis=at["axis"])


def reshape(inputs: Inputs, constants: Named, at: Named) -> Array:
    return inputs[0].reshape(at["shape"])


def permute(inputs: Inputs, constants: Named, at: Named) -> Array:
    return inputs[0].transpose(at["axes"])


def slice_(inputs: Inputs, constants: Named, at: Named) -> Array:
    cut = slice(at["start"], at["stop"], at["step"])
    return inputs[0][(*(slice(None),) * at["axis"], cut)]


def pad(inputs: Inputs, constants: Named, at: Named) -> Array:
    return arithmetic.pad(inputs[0], at["before"], at["after"], at["fill"])


def broadcast(inputs: Inputs, constants: Named, at: Named) -> Array:
    shape = [
        old if new == -1 else new for new, old in zip(at["shape"], _lead(inputs[0], len(at["shape"])), strict=True)
    ]
    return np.broadcast_to(inputs[0], shape)


def _lead(x: Array, rank: int) -> list[int]:
    return [1] * (rank - x.ndim) + list(x.shape)


# what is written for the sizes of the example: with others, the steps would read other places
SIZED = frozenset(("sum_windows", "blend", "take", "reshape", "slice", "broadcast"))

STEPS: Mapping[str, Callable[[Inputs, Named, Named], Array]] = MappingProxyType(
    {
        "conv": conv,
        "linear": linear,
        "matmul": matmul,
        "add": add,
        "mul": mul,
        "center": center,
        "clamp": clamp,
        "leaky_relu": leaky_relu,
        "hardswish": hardswish,
        "requantize": requantize,
        "table": table,
        "max_pool": max_pool,
        "sum_windows": sum_windows,
        "blend": blend,
        "take": take,
        "concat": concat,
        "reshape": reshape,
        "permute": permute,
        "slice": slice_,
        "pad": pad,
        "broadcast": broadcast,
    }
)
