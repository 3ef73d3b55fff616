"""Other code that reads the weight or bias of a converted module gets its values, in float.

get_attr embed.weight                ->   dequantize(get_attr embed.weight, ...)
get_attr rnn.layers.0.0.ih.weight    ->   the same, of a region inside: when all regions are converted
"""

from __future__ import annotations

from torch import Tensor, fx

from fxquant.graph.context import Context
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import reads, reads_inside
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.passes.convert_weights import dequantize_bias, dequantize_weight
from fxquant.passes.halve_weights import HALVED, widen

Reads = list[tuple[fx.Node, str, str]]  # node, path of the module, name of the tensor


def find_reads(region: Region) -> Reads:
    """Return the nodes that read a weight or bias of which conversion makes integers."""
    owned: dict[int, tuple[str, str]] = {}
    for node in region.graph.nodes:
        note = note_of(node)
        if note is None or note.weight is None or node.op != "call_module":
            continue
        path = str(node.target)
        for name in ("weight", "bias"):
            tensor = getattr(region.get_submodule(path), name, None)
            if isinstance(tensor, Tensor):
                owned.setdefault(id(tensor), (path, name))
    return [(node, *owned[id(tensor)]) for node, tensor in reads(region) if id(tensor) in owned]


def put_values(region: Region, found: Reads) -> None:
    """Let these nodes read values, once the modules hold integers."""
    for node, path, name in found:
        holder = region.get_submodule(path)
        assert isinstance(holder, QuantizedWeight)
        _put(region.graph, node, path, holder, name)


def connect_reads(region: Region, context: Context) -> None:
    """Give readers of weights that regions inside hold as integers, or as float16, their values."""
    for node, path, holder in reads_inside(region):
        name = str(node.target).rpartition(".")[2]
        if isinstance(holder, QuantizedWeight) and name in ("weight", "bias"):
            _put(region.graph, node, path, holder, name)
        elif HALVED in holder.__dict__ and name == "weight":
            widen(region.graph, node, holder.__dict__[HALVED])


def _put(graph: fx.Graph, node: fx.Node, path: str, holder: QuantizedWeight, name: str) -> None:
    shell = holder.shell._parameters["weight"]
    assert shell is not None
    with graph.inserting_before(node):
        if name == "weight":
            values = dequantize_weight(graph, path, holder, shell.dtype)
        else:
            values = graph.get_attr(f"{path}.bias")
            if "bias_scale" in holder._buffers:
                values = dequantize_bias(graph, path, values, shell.dtype)
    node.replace_all_uses_with(values)
    graph.erase_node(node)
