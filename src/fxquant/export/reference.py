"""The QDQ graph of a converted model, whatever engine the model was lowered for."""

from __future__ import annotations

from torch import Tensor, fx, nn

from fxquant.core import compat
from fxquant.core.graph import Region, clone_tree, regions
from fxquant.errors import StageError
from fxquant.passes.fill_grids import fill_grids, put_back
from fxquant.passes.quantized_weight import QuantizedWeight


def reference_of(model: nn.Module, caller: str) -> nn.Module:
    """A model that shares the tensors of `model` and runs its QDQ graph, with numbers in it. `model` is not changed."""
    found = list(regions(model))
    wrong = next((region._region.stage for _, region in found if region._region.stage != "converted"), None)
    if wrong is not None or not found:
        stage = f"is {wrong}" if wrong is not None else f"is a plain {type(model).__name__}"
        raise StageError(f"{caller} needs a converted model; this one {stage}. Use quantize(...) or convert_fx(...).")
    tree = clone_tree(model)
    for _, region in regions(tree):
        _restore(region)
    return tree


def _restore(region: Region) -> None:
    region._region.lower, region._region.runner = None, None
    fill_grids(region)._region.filled.ready(region)
    put_back(region)
    _spread_weights(region)


def _spread_weights(region: Region) -> None:
    """Integers that are two to a byte, one to an element: other formats pack them in their own way."""
    made: dict[int, Tensor] = {}
    for node in [node for node in region.graph.nodes if node.target is compat.UNPACK]:
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
