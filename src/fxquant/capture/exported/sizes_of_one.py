"""Sizes of one: export decides about them without looking, so look.

For a free size, torch.export takes "not 0 and not 1" for granted and writes no guard. So that a model exported with a
batch of 8 still runs on a batch of 1, each free size is set to 1 once, and the graph compared with the model. If it is
right, conditions that rule out 1 are relaxed to `size == 1 or ...`; if not, `size >= 2` is added.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fxquant.capture.conditions import Condition, holds
from fxquant.capture.exported.export import Exported
from fxquant.capture.recording import Recording
from fxquant.capture.run_untraced import difference, evaluating, trying
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.late_code import outdate
from fxquant.graph.region import Region


def probe_ones(recording: Recording, region: Region, exported: Exported) -> None:
    """Make the region's check of sizes say the truth about sizes of one."""
    if exported.sizes is None:
        return
    for places in exported.free:
        _probe(recording, region, exported.sizes, places)
    outdate(region)


def _probe(recording: Recording, region: Region, check: fx.Node, places: tuple[tuple[int, int], ...]) -> None:
    leaves, spec = pytree.tree_flatten((recording.args, recording.kwargs))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for index, dim in places:
        leaves[tensors[index]] = leaves[tensors[index]].narrow(dim, 0, 1)
    single = [leaves[i].shape for i in tensors]
    size = ("size", *places[0])
    conditions: tuple[Condition, ...] = check.args[2]  # type: ignore[assignment]
    relaxed = tuple(each if holds(each, single) else ("or", ("==", size, 1), each) for each in conditions)
    check.args = (*check.args[:2], relaxed)
    outdate(region)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    training = recording.model.training
    right = _agree(recording, region, args, kwargs, training) or (
        training and _agree(recording, region, args, kwargs, False)  # batch norm cannot train on a batch of one
    )
    check.args = (*check.args[:2], (*relaxed, (">=", size, 1)) if right else (*conditions, (">=", size, 2)))


def _agree(
    recording: Recording, region: Region, args: tuple[object, ...], kwargs: dict[str, object], training: bool
) -> bool:
    if any(isinstance(module, nn.EmbeddingBag) for module in region.modules()):
        return False  # offsets that do not fit the indices, and torch reads past their end
    reference = clone_tree(recording.model)
    try:
        with evaluating(region, not training), evaluating(reference, not training), trying():
            ours, theirs = recording.run(region, args, kwargs), recording.run(reference, args, kwargs)
            return difference(ours, theirs) is None
    except Exception:
        return False
