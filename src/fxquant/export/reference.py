"""The QDQ graph of a converted model, whatever engine the model was lowered for."""

from __future__ import annotations

from torch import Tensor, fx, nn

from fxquant.errors import StageError
from fxquant.graph import torch_compat
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.lowering import unlower
from fxquant.graph.region import Region, lowering_of, regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.passes.fill_grids import fill_grids


def reference_of(model: nn.Module, caller: str) -> nn.Module:
    """Return a model that shares the tensors of `model` and runs its QDQ graph, with numbers in it.

    `model` is not changed.
    """
    found = list(regions(model))
    wrong = next((stage_of(region) for _, region in found if stage_of(region) is not Stage.CONVERTED), None)
    if wrong is not None or not found:
        stage = f"is {wrong}" if wrong is not None else f"is a plain {type(model).__name__}"
        raise StageError(f"{caller} needs a converted model; this one {stage}. Use quantize(...) or convert_fx(...).")
    tree = clone_tree(model)
    for _, region in regions(tree):
        _restore(region)
    return tree


def _restore(region: Region) -> None:
    fill_grids(region)
    unlower(region)
    lowering_of(region).ready(region)
    _spread_weights(region)


def _spread_weights(region: Region) -> None:
    """Integers that are two to a byte, one to an element: other formats pack them in their own way."""
    made: dict[int, Tensor] = {}
    for node in [node for node in region.graph.nodes if node.target is torch_compat.UNPACK]:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        read = source if source.op == "get_attr" else source.args[1]  # an embedding looks up packed rows
        assert isinstance(read, fx.Node)
        holder = region.get_submodule(str(read.target).rpartition(".")[0])
        assert isinstance(holder, QuantizedWeight)
        if holder.tail is not None:
            holder._buffers["weight"] = made.setdefault(id(holder.stored), holder.integers)
            holder.tail = None
        node.replace_all_uses_with(source)
        region.graph.erase_node(node)
    region.recompile()
