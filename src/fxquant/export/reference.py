"""The QDQ graph of a converted model, whatever engine the model was lowered for."""

from __future__ import annotations

from torch import nn

from fxquant.core.encode import decode_graph
from fxquant.core.graph import Region, clone_tree, regions
from fxquant.errors import StageError


def reference_of(model: nn.Module, caller: str) -> nn.Module:
    """A model that shares the tensors of `model` and runs its reference graph. `model` is not changed."""
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
    state = region._region
    if state.reference is not None:
        region.delete_submodule(state.kernel_path)
        region.graph = decode_graph(state.reference)
        state.reference, state.kernel_path, state.runner = None, "", None
