"""Run data through a prepared model, so that its observers see the ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.core.graph import regions
from fxquant.core.tree import tree_of
from fxquant.errors import CalibrationError, StageError


def calibrate(prepared: nn.Module, data: Iterable[Any], *, num_batches: int | None = None) -> nn.Module:
    """Feed batches to a prepared model and return it.

    A batch is a tensor, a dict of keyword arguments, or a tuple or list of positional arguments; what goes beyond the
    example inputs given to `prepare_fx` (labels, mostly) is left out.
    """
    stages = {region._region.stage for _, region in regions(prepared)}
    if "prepared" not in stages:
        what = f"a {stages.pop()} model" if stages else "a plain module"
        raise StageError(f"calibrate needs a model from prepare_fx, and got {what}.")
    if prepared.training:
        raise StageError("calibrate runs in eval mode: call prepared.eval() first.")
    if isinstance(data, (Tensor, Mapping, str)) or not isinstance(data, Iterable):
        raise CalibrationError(
            f"calibration data is a {type(data).__name__}; give an iterable of batches: a DataLoader or [batch]."
        )
    count = 0
    with torch.no_grad():
        for batch in data:
            if num_batches is not None and count >= num_batches:
                break
            run_batch(prepared, batch)
            count += 1
    if not count:
        raise CalibrationError("the calibration data has no batches. Give at least one; about 100 images is usual.")
    return prepared


def run_batch(prepared: nn.Module, batch: Any) -> Any:
    """Call the model with a batch in any of the forms that `calibrate` takes."""
    tree = tree_of(prepared)
    fixed = dict(tree.concrete)
    if isinstance(batch, Mapping):
        names = tree.input_names
        return prepared(**{**fixed, **{key: value for key, value in batch.items() if not names or key in names}})
    if isinstance(batch, (tuple, list)):
        return prepared(*batch[: tree.num_inputs or len(batch)], **fixed)
    return prepared(batch, **fixed)
