"""a, b = x.split(n, 1)   ->   a = x[:, :n], b = x[:, n:]: channels, on hardware that has slices. Exact."""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import note_rewrite, to_rewrite
from fxquant.passes.read_op import operand_of, setting

_DONE = Rewrite(name="split_to_slice", text="a slice for a part of a split, exact")
_SPELLINGS = ("split", "split_with_sizes", "chunk", torch.split, torch.split_with_sizes, torch.chunk)


def split_to_slice(region: Region, context: Context) -> None:
    """Write splits of channels as slices, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "split_to_slice", ("split",)):
        parts = node.meta.get("tensor")
        axis = setting(node, None, 2, "dim", 0)
        if not _is_known(node) or axis != 1 or not isinstance(parts, tuple):
            continue
        if not all(isinstance(part, TensorInfo) for part in parts) or not all(map(_is_item, node.users)):
            continue
        starts = [sum(part.shape[1] for part in parts[:index]) for index in range(len(parts) + 1)]
        for user in list(node.users):
            index = int(str(user.args[1])) % len(parts)
            user.args = (operand_of(node), (slice(None), slice(starts[index], starts[index + 1])))
            user.meta.update({key: node.meta[key] for key in ("choice",) if key in node.meta})
            note_rewrite(user, _DONE)
        region.graph.erase_node(node)


def _is_known(node: fx.Node) -> bool:
    name = getattr(node.target, "_opname", "") if isinstance(node.target, torch._ops.OpOverload) else node.target
    return name in _SPELLINGS


def _is_item(user: fx.Node) -> bool:
    return user.target is operator.getitem and isinstance(user.args[1], int)
