"""The QDQ graph of a converted model, whatever engine the model was lowered for."""

from __future__ import annotations

from torch import nn

from fxquant.core.graph import Region, clone_tree, regions
from fxquant.errors import StageError
from fxquant.passes.fill_grids import fill_grids, put_back


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
