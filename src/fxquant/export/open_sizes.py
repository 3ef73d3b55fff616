"""Which sizes of the inputs stay open: the batch, or what the user names.

dynamic_shapes={"image": {2: "height", 3: "width"}}        names by argument and axis

torch finds which sizes the model can take: a convolution by steps of 2 needs three rows at least, for one would be
broadcast. A torch.export.Dim, which has bounds of its own, may be given in the place of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fxquant.errors import ConfigError
from fxquant.export.onnx.signature import parameters_of

Shapes: TypeAlias = dict[str, Any]  # what torch.export takes as dynamic_shapes, by argument
DynamicShapes = Mapping[str, Mapping[int, Any] | None]
Call: TypeAlias = tuple[tuple[object, ...], dict[str, object]]  # args and kwargs


def open_sizes(
    tree: nn.Module, example: Call, caller: str, *, dynamic_batch: bool, dynamic_shapes: DynamicShapes | None
) -> tuple[Call, Shapes | None]:
    """Return the example as torch.export can open its sizes, and its `dynamic_shapes`; None if all are fixed."""
    shapes: Shapes | None = None
    if dynamic_batch:
        first = next((leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim()), None)
        if first is None:
            raise ConfigError(f"{caller}(dynamic_batch=True): no example input has a batch dimension.")
        example, shapes = open_batch(tree, example, first.shape[0])
    if dynamic_shapes is not None:
        shapes = _named(tree, example, caller, shapes, dynamic_shapes)
    return example, shapes


def _named(tree: nn.Module, example: Call, caller: str, shapes: Shapes | None, wanted: DynamicShapes) -> Shapes:
    for given in (wanted, *(wanted.values() if isinstance(wanted, Mapping) else ())):
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f"{caller}(dynamic_shapes={wanted!r:.80}): give names by argument and axis, such as "
                '{"image": {2: "height", 3: "width"}}.'
            )
    bound = parameters_of(tree).bind(*example[0], **example[1]).arguments
    found = dict.fromkeys(bound) if shapes is None else dict(shapes)
    for name, axes in wanted.items():
        if name not in bound or not isinstance(bound[name], Tensor):
            tensors = ", ".join(repr(each) for each, value in bound.items() if isinstance(value, Tensor))
            raise ConfigError(f"{caller}(dynamic_shapes=...): {name!r} is no tensor argument. Those are {tensors}.")
        opened = dict(found[name] or {})
        for axis, size in (axes or {}).items():
            rank, there = bound[name].dim(), axis
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise ConfigError(f"{caller}(dynamic_shapes=...): {name!r} has {rank} axes, and no axis {axis!r}.")
            there = axis % rank
            if bound[name].shape[there] < 2:
                raise ConfigError(
                    f"{caller}(dynamic_shapes=...): axis {axis} of {name!r} is {bound[name].shape[there]} in the "
                    "example inputs; torch fixes sizes of 0 and 1. Give an example where it is 2 or more."
                )
            if not isinstance(size, (str, int, torch.export.Dim, type(torch.export.Dim.AUTO), type(None))):
                raise ConfigError(
                    f"{caller}(dynamic_shapes=...): axis {axis} of {name!r} is {size!r}. Give a name, or a "
                    "torch.export.Dim."
                )
            opened[there] = torch.export.Dim.DYNAMIC if isinstance(size, str) else size
        found[name] = opened
    return found


def open_batch(tree: nn.Module, example: Call, batch: int) -> tuple[Call, Shapes]:
    """Return the example with a batch above 1, which torch.export would fix, and the open dimension of each tensor."""
    dim = torch.export.Dim("batch")

    def is_batched(leaf: object) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch

    shapes = tree_map(lambda leaf: {0: dim} if is_batched(leaf) else None, example)
    if batch == 1:
        example = tree_map(lambda leaf: torch.cat([leaf, leaf]) if is_batched(leaf) else leaf, example)
    return example, dict(parameters_of(tree).bind(*shapes[0], **shapes[1]).arguments)
