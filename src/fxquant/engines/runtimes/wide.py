"""Products of bytes that may leave int16 where a CPU sums them in pairs (engines/onednn/pairs.py), in an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fxquant.engines.onednn.pairs import may_overflow
from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PLAIN = ("MatMulInteger", "ConvInteger")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_BYTE = 255


def has_wide_products(graph: ir.Graph) -> bool:
    """Whether there are any; ops on integers that have no grids around them are taken for such."""
    plain = any(node.op_type in _PLAIN for node in graph.all_nodes())
    return plain or any(True for _ in _wide_products(graph))


def _wide_products(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Such products, each with the dequantize of its weight."""
    for node in graph.all_nodes():
        if node.op_type not in _PRODUCTS:
            continue
        x, weight = dequantize_before(node.inputs[0], _MOVES), dequantize_before(node.inputs[1], _MOVES)
        if x is None or weight is None or (q := value_of(weight.inputs[0])) is None or q.dtype.itemsize != 1:
            continue
        if may_overflow(_most(x), int(abs(q.astype(np.int64)).max(initial=0))):
            yield node, weight


def multiply_in_float(graph: ir.Graph) -> None:
    """Give these products weights in float, with which runtimes multiply in float: the same sums, more slowly."""
    made: dict[ir.Node, ir.Value] = {}
    for _, weight in list(_wide_products(graph)):
        if weight not in made:
            array = _dequantized(weight)
            if array is None:
                continue
            made[weight] = add_initializer(graph, f"{weight.outputs[0].name}_float", array)
            weight.outputs[0].replace_all_uses_with(made[weight])


def _most(dequantize: ir.Node) -> int:
    """The greatest byte that the kernel sees: a Clip may hold it. Signed ones are moved 128 up by the runtimes."""
    source = dequantize.inputs[0]
    made = source.producer() if source is not None else None
    if made is None or made.op_type != "Clip" or source is None or source.dtype != ir.DataType.UINT8:
        return _BYTE
    most = value_of(made.inputs[2]) if len(made.inputs) > 2 else None
    return _BYTE if most is None else int(most.item())


def _dequantized(node: ir.Node) -> Array | None:
    q, scale = (value_of(value) for value in node.inputs[:2])
    zero = value_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.int8)
    if q is None or scale is None or zero is None or "block_size" in node.attributes:
        return None
    shape = [1] * q.ndim
    if scale.size > 1:
        shape[node.attributes.get_int("axis", 1)] = -1
    steps = q.astype(np.float32) - zero.astype(np.float32).reshape(shape if zero.size > 1 else [1] * q.ndim)
    made: Array = steps * scale.reshape(shape if scale.size > 1 else [1] * q.ndim)
    return made.astype(np.float32)
