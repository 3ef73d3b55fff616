"""Padded average pools in a form that OpenVINO computes right.

It moves zero points behind the pool, but not those of the zeros that the pool pads with; and where a window hangs over
the padding, it divides by the whole window. So the padding is an op of its own, and an op that changes nothing keeps
OpenVINO from joining the two again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import add_initializer

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"))


def pad_pools(graph: ir.Graph) -> None:
    """Rewrite the average pools that need it, in place."""
    for pool in [node for node in graph if node.op_type == "AveragePool"]:
        x = pool.inputs[0]
        if x is None:
            continue
        counted = any(pool.attributes.get_ints("pads", ())) and pool.attributes.get_int("count_include_pad", 0)
        sizes = _sizes(pool, x) if counted and (pool.attributes.get_int("ceil_mode", 0) or _is_shifted(x)) else None
        if sizes is not None:
            half = len(sizes) // 2
            pads = np.array([0, 0, *sizes[:half], 0, 0, *sizes[half:]])
            x = _insert(graph, pool, "Pad", add_initializer(graph, f"{x.name}_pads", pads))
            pool.attributes["pads"] = ir.AttrInt64s("pads", [0] * len(sizes))
            pool.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 0)
        made = x.producer()
        if made is not None and made.op_type == "Pad":
            lowest = np.array(np.finfo(np.float32).min)
            _insert(graph, pool, "Max", add_initializer(graph, f"{x.name}_lowest", lowest))


def _sizes(pool: ir.Node, x: ir.Value) -> list[int] | None:
    """Return what to pad with; None if that cannot be said.

    A window that would start behind the tensor is left out, also where sizes are rounded up. As an op of its own, the
    padding has to end before such a window.
    """
    pads = list(pool.attributes.get_ints("pads", ()))
    if not pool.attributes.get_int("ceil_mode", 0):
        return pads
    half = len(pads) // 2
    kernel = pool.attributes.get_ints("kernel_shape", ())
    strides = pool.attributes.get_ints("strides", [1] * half)
    if x.shape is None or len(x.shape) != half + 2:
        return None
    for dim, (size, step, width) in enumerate(zip(x.shape[2:], strides, kernel, strict=True)):
        if not isinstance(size, int):
            return None
        before = size + pads[dim]
        count = -(-(before + pads[half + dim] - width) // step) + 1
        if (count - 1) * step >= before:
            pads[half + dim] = (count - 2) * step + width - before
    return pads if min(pads) >= 0 else None


def _insert(graph: ir.Graph, pool: ir.Node, kind: str, constant: ir.Value) -> ir.Value:
    """Put an op of two inputs before a pool."""
    new = ir.node(kind, [pool.inputs[0], constant])
    graph.insert_before(pool, new)
    pool.replace_input_with(0, new.outputs[0])
    return new.outputs[0]


def _is_shifted(value: ir.Value) -> bool:
    """Tell whether a tensor came from integers with a zero point, by ops that are not products."""
    seen, ahead = {value}, [value]
    while ahead:
        made = ahead.pop().producer()
        if made is None or made.op_type in _PRODUCTS:
            continue
        if made.op_type == "DequantizeLinear":
            if len(made.inputs) == 3:
                return True
            continue
        new = {each for each in made.inputs if each is not None} - seen
        seen |= new
        ahead.extend(new)
    return False
