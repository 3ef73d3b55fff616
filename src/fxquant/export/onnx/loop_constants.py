"""Where the constants of a loop stand.

A runtime fuses a pair with constants that are in its own graph, so they move into the loop. A weight that is multiplied
in float is better dequantized before the loop than in every step.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.onnx.initializers import add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

_COPIED = 2**16  # bytes; a larger constant that others read too stays where it is


def move_into_loops(graph: ir.Graph) -> None:
    """Move the initializers of a graph into the loop bodies that read them, in place; small ones are copied."""
    for value in list(graph.initializers.values()):
        _move_in(graph, value)


def move_weights_before_loops(graph: ir.Graph) -> None:
    """Dequantize weights that are multiplied in float before the loop, in place. OpenVINO does not take that."""
    for loop in list(graph):
        bodies = [attribute.as_graph() for attribute in loop.attributes.values() if attribute.type.name == "GRAPH"]
        for body in bodies:
            for node in list(body):
                if node.op_type == "DequantizeLinear" and _is_weight_of_float_op(node):
                    _move_out(graph, loop, body, node)


def _move_out(graph: ir.Graph, loop: ir.Node, body: ir.Graph, node: ir.Node) -> None:
    for index, value in enumerate(node.inputs):
        array = value_of(value)
        if value is not None and array is not None and value.graph is body:
            node.replace_input_with(index, add_initializer(graph, str(value.name), array))
    body.remove(node)
    graph.insert_before(loop, node)


def _is_weight_of_float_op(dequantize: ir.Node) -> bool:
    others = [
        other
        for user, index in dequantize.outputs[0].uses()
        for place, other in enumerate(user.inputs[:2])
        if place != index
    ]
    constant = all(value is None or value.is_initializer() for value in dequantize.inputs)
    return constant and not any(dequantize_before(other) for other in others)


def _move_in(graph: ir.Graph, value: ir.Value) -> None:
    array = value_of(value)
    readers = {id(user.graph) for user, _ in value.uses()}
    inside = [(user, index) for user, index in value.uses() if user.graph is not graph]
    if array is None or not inside or (len(readers) > 1 and array.nbytes > _COPIED):
        return
    made: dict[int, ir.Value] = {}
    for user, index in inside:
        assert isinstance(user.graph, ir.Graph)
        if id(user.graph) not in made:
            made[id(user.graph)] = add_initializer(user.graph, f"{user.graph.name}_{value.name}", array)
        user.replace_input_with(index, made[id(user.graph)])
    if not value.uses() and not value.is_graph_output():
        del graph.initializers[str(value.name)]
