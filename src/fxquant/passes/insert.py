"""Put the quantizers that annotate asked for into the graph, as calls of `FakeQuant` modules.

A quantized output is followed by its quantizer and everything that used it uses the quantized tensor, except kernels
whose operand is exempted. A quantized input whose producer is float gets a quantizer on the way in.
"""

from __future__ import annotations

from torch import fx, nn

from fxquant.core.graph import Region, free_path
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.plan import note_of
from fxquant.numerics.fake_quant import FakeQuant


def insert(region: Region, ops: OpTable = OPS) -> Region:
    """Insert one `FakeQuant` module per quantizer id, at `quantizers.<id>`, and its calls."""
    specs = region._region.quantizers or {}
    container = free_path(region, "quantizers")
    quantizers = nn.ModuleDict({name: FakeQuant(spec, name) for name, spec in specs.items()})
    region.add_module(container, quantizers.train(region.training))
    region._region.quantizer_path = container
    for node in list(region.graph.nodes):
        note = note_of(node)
        if note is not None and note.output is not None:
            _after(region, node, f"{container}.{note.output}", note.observe_output, ops)
    edges: dict[tuple[fx.Node, str], fx.Node] = {}
    for node in list(region.graph.nodes):
        note = note_of(node)
        op = ops.of_node(node, region)
        if note is None or op is None:
            continue
        for operand, name in zip(activation_nodes(node, op), note.inputs, strict=False):
            target = f"{container}.{name}"
            if name is None or isinstance(operand.meta.get("tensor"), tuple) or operand.target == target:
                continue
            if (operand, target) not in edges:
                with region.graph.inserting_after(_after_inputs(operand)):
                    edges[operand, target] = _call(region, operand, target, observe=True)
            node.replace_input_with(operand, edges[operand, target])
    region.graph.lint()
    region.recompile()
    return region


def _call(region: Region, source: fx.Node, target: str, *, observe: bool) -> fx.Node:
    quantizer = region.graph.call_module(target, (source,), {} if observe else {"observe": False})
    quantizer.meta.update({key: source.meta[key] for key in ("scope", "where", "tensor") if key in source.meta})
    return quantizer


def _after_inputs(node: fx.Node) -> fx.Node:
    """Placeholders stay together at the top of a graph."""
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node


def _after(region: Region, node: fx.Node, target: str, observe: bool, ops: OpTable) -> None:
    exempt = [user for user in node.users if _exempts(user, node, region, ops)]
    with region.graph.inserting_after(node):
        quantizer = _call(region, node, target, observe=observe)
    node.replace_all_uses_with(quantizer, delete_user_cb=lambda user: user is not quantizer and user not in exempt)


def _exempts(user: fx.Node, source: fx.Node, region: Region, ops: OpTable) -> bool:
    """Whether a kernel takes this operand in float although the tensor is quantized for others."""
    note, op = note_of(user), ops.of_node(user, region)
    if note is None or op is None or not note.inputs:
        return False
    operands = zip(activation_nodes(user, op), note.inputs, strict=False)
    return any(operand is source and name is None for operand, name in operands)
