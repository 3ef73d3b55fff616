"""Ops on whole numbers in ONNX as torch computes them.

torch.onnx divides them as float32, which holds 24 bits, and compares the classes of `one_hot` with each other, so that
one which is not there is a row of zeros and no error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import core

Value = Any  # a tensor while the graph is being built
op: Any = opset18
_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)


def divide(self: Value, other: Value, rounding_mode: str | None = None) -> Value:
    """Return the quotient, rounded towards zero or down: ONNX rounds that of whole numbers towards zero."""
    dtype = self.dtype
    whole = type(other) is int or getattr(other, "dtype", None) == dtype
    if rounding_mode is None or dtype not in _WHOLE or not whole:
        return core.aten_div_mode(self, other, rounding_mode)
    if type(other) is int:
        other = op.Constant(value=ir.tensor(np.array(other, dtype.numpy())))
    quotient = op.Div(self, other)
    if rounding_mode == "trunc":
        return quotient
    rest, zero = op.Sub(self, op.Mul(quotient, other)), op.Constant(value=ir.tensor(np.array(0, dtype.numpy())))
    between = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(other, zero)))
    return op.Sub(quotient, op.Cast(between, to=int(dtype)))


def one_hot(self: Value, num_classes: int) -> Value:
    """Return a line of `num_classes` for each class."""
    depth = op.Constant(value=ir.tensor(np.array([num_classes], np.int64)))
    return op.OneHot(self, depth, op.Constant(value=ir.tensor(np.array([0, 1], np.int64))), axis=-1)
