"""Products of bytes that may leave int16 where a CPU sums them in pairs (engines/onednn/pairs.py), in an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fxquant.engines.onednn.pairs import may_overflow
from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before, quantize_before

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PLAIN = ("MatMulInteger", "ConvInteger")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_BYTE = 255


def has_wide_products(graph: ir.Graph) -> bool:
    """Tell whether there are any; ops on integers that have no grids around them are taken for such."""
    plain = any(node.op_type in _PLAIN for node in graph.all_nodes())
    return plain or any(True for _ in _wide_products(graph))


def _wide_products(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Such products, each with the dequantize of its second operand: a weight, or a tensor that is computed too."""
    for node in graph.all_nodes():
        if node.op_type not in _PRODUCTS:
            continue
        x, other = _integers_behind(node.inputs[0]), _integers_behind(node.inputs[1])
        if x is not None and other is not None and may_overflow(_most(x), _largest(other)):
            yield node, other


def _integers_behind(value: ir.Value | None) -> ir.Node | None:
    """Return the dequantize behind moves and factors of an operand: runtimes take both out of the product."""
    found = dequantize_before(value, (*_MOVES, "Mul"))
    while value is not None and (made := value.producer()) is not None and made is not found:
        if made.op_type == "Mul" and value_of(made.inputs[1]) is None:
            return None
        value = made.inputs[0]
    return found


def part_weights(graph: ir.Graph) -> None:
    """Give each dequantize of a constant integers and a zero point of its own.

    ONNX Runtime makes both unsigned for each of them, and refuses a constant that it has replaced already.
    """
    taken: set[ir.Value] = set()
    for node in list(graph.all_nodes()):
        if node.op_type != "DequantizeLinear" or node.graph is not graph or value_of(node.inputs[0]) is None:
            continue
        for place in (0, 2):
            value = node.inputs[place] if place < len(node.inputs) else None
            if value is None or (array := value_of(value)) is None:
                continue
            if value in taken:
                node.replace_input_with(place, add_initializer(graph, f"{value.name}_again", array))
            taken.add(value)


def multiply_in_float(graph: ir.Graph) -> None:
    """Give these products an operand in float, with which runtimes multiply in float: the same sums, more slowly."""
    made: set[ir.Node] = set()
    for _, other in list(_wide_products(graph)):
        if other in made:
            continue
        made.add(other)
        if value_of(other.inputs[0]) is None:
            _round_in_float(graph, other)
        elif (array := _dequantized(other)) is not None:
            constant = add_initializer(graph, f"{other.outputs[0].name}_float", array)
            other.outputs[0].replace_all_uses_with(constant)


def _round_in_float(graph: ir.Graph, dequantize: ir.Node) -> None:
    """Write a pair as scale * clip(round(x / scale)) in float: runtimes do not find integers behind that."""
    quantize = quantize_before(dequantize)
    if quantize is None:
        return
    scale, zero = value_of(quantize.inputs[1]), value_of(quantize.inputs[2])
    if scale is None or zero is None or scale.size != 1:
        return
    info, name = np.iinfo(zero.dtype), dequantize.outputs[0].name
    ends = (info.min - int(zero.item()), info.max - int(zero.item()))
    step, low, high = (
        add_initializer(graph, f"{name}_{what}", np.array(value, np.float32))
        for what, value in (("step", scale.item()), ("low", ends[0]), ("high", ends[1]))
    )
    value, like = quantize.inputs[0], dequantize.outputs[0]
    for kind, constants in (("Div", (step,)), ("Round", ()), ("Clip", (low, high)), ("Mul", (step,))):
        node = ir.node(kind, [value, *constants])
        node.outputs[0].dtype, node.outputs[0].shape = like.dtype, like.shape
        dequantize.prepend(node)
        value = node.outputs[0]
    like.replace_all_uses_with(value)


def _largest(dequantize: ir.Node) -> int:
    """Return the largest size of a second operand's integers; 0 where they are not bytes."""
    source = dequantize.inputs[0]
    q = value_of(source)
    if q is not None:
        return int(abs(q.astype(np.int64)).max(initial=0)) if q.dtype.itemsize == 1 else 0
    return _BYTE if source is not None and source.dtype in (ir.DataType.UINT8, ir.DataType.INT8) else 0


def _most(dequantize: ir.Node) -> int:
    """Return the greatest byte that the kernel sees: a Clip may hold it.

    Signed ones are moved 128 up by the runtimes.
    """
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
