"""The constants of an ONNX graph as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]


def value_of(value: ir.Value | None) -> Array | None:
    """Return the array behind a constant, or None for what is computed."""
    if value is None or value.const_value is None:
        return None
    array: Array = value.const_value.numpy()
    return array


def add_initializer(graph: ir.Graph, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    """Return a new constant, under `name` or the first free name after it."""
    free, count = name, 0
    while free in graph.initializers:
        count += 1
        free = f"{name}_{count}"
    tensor = ir.tensor(array, name=free) if isinstance(array, np.ndarray) else array
    value = ir.Value(name=free, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape))
    graph.register_initializer(value)
    return value
