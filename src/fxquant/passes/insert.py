"""Put the quantizers that annotate asked for into the graph, as calls of `FakeQuant` modules.

A quantized output is followed by its quantizer and everything that used it uses the quantized tensor, except kernels
whose operand is exempted. A quantized input whose producer is float gets a quantizer on the way in.
"""

from __future__ import annotations

from torch import fx
from torch.fx.node import Argument

from fxquant.graph.context import Context
from fxquant.graph.nodes import last_input
from fxquant.graph.notes import note_of
from fxquant.graph.paths import free_path
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.statistics import Quantizers
from fxquant.ops.table import OpTable, activation_nodes


def insert(region: Region, context: Context) -> None:
    """Insert one `FakeQuant` module per quantizer id, at `quantizers.<id>`, and its calls.

    For training, a spec that does not say how is trained straight through ("ste").
    """
    ops, training = context.ops, context.training
    specs = preparation_of(region).quantizers or {}
    if training:
        specs = {name: spec.trained() for name, spec in specs.items()}
        preparation_of(region).quantizers = specs
    container = free_path(region, "quantizers")
    made = {name: FakeQuant(spec, name) for name, spec in specs.items()}
    for quantizer in made.values() if training else ():
        quantizer.state = "train"
    quantizers = Quantizers(made)
    region.add_module(container, quantizers.train(region.training))
    preparation_of(region).quantizer_path = container
    for node in list(region.graph.nodes):
        note = note_of(node)
        if note is not None and note.output is not None:
            _after(region, node, f"{container}.{note.output}", _flags(region, node, note.observe_output, ops), ops)
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
                with region.graph.inserting_after(last_input(operand)):
                    edges[operand, target] = _call(region, operand, target, {})
            node.replace_input_with(operand, edges[operand, target])


def _flags(region: Region, node: fx.Node, observe: bool, ops: OpTable) -> dict[str, Argument]:
    """Tell how the quantizer after a node is called.

    What dropout lets pass is scaled up, beyond the range, in training.
    """
    op = ops.of_node(node, region)
    drops = op is not None and op.random
    found: dict[str, Argument] = {} if observe else {"observe": False}
    return {**found, "training": False} if drops else found


def _call(region: Region, source: fx.Node, target: str, flags: dict[str, Argument]) -> fx.Node:
    quantizer = region.graph.call_module(target, (source,), flags)
    quantizer.meta.update({key: source.meta[key] for key in ("scope", "where", "tensor") if key in source.meta})
    return quantizer


def _after(region: Region, node: fx.Node, target: str, flags: dict[str, Argument], ops: OpTable) -> None:
    exempt = [user for user in node.users if _exempts(user, node, target, region, ops)]
    with region.graph.inserting_after(node):
        quantizer = _call(region, node, target, flags)
    node.replace_all_uses_with(quantizer, delete_user_cb=lambda user: user is not quantizer and user not in exempt)


def _exempts(user: fx.Node, source: fx.Node, target: str, region: Region, ops: OpTable) -> bool:
    """Tell whether a kernel takes this operand in float although the tensor is quantized for others.

    That is, or on its own grid per channel, which a tensor that was rounded to one scale would not need any more.
    """
    note, op = note_of(user), ops.of_node(user, region)
    if note is None or op is None or not note.inputs:
        return False
    specs, own = preparation_of(region).quantizers or {}, target.rpartition(".")[2]
    for operand, name in zip(activation_nodes(user, op), note.inputs, strict=False):
        if operand is source and (name is None or (name != own and specs[name].granularity == "per_channel")):
            return True
    return False
