"""x.mean((2, 3))   ->   the global average pool, flattened where the axes are not kept. Exact."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.nodes import tensor_info
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, note_rewrite, replace, to_rewrite
from fxquant.passes.read_op import mean_axes, operand_of, setting

_DONE = Rewrite(name="mean_to_pool", text="a global average pool for the mean over a picture, exact")


def mean_to_pool(region: Region, context: Context) -> None:
    """Write the mean over a picture as a global average pool, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "mean_to_pool", ("mean",)):
        before = tensor_info(operand_of(node))
        if before is None or len(before.shape) != 4 or mean_axes(node) != (2, 3):
            continue
        if node.kwargs.get("dtype") is not None or len(node.args) > 3:
            continue
        made = call(node, F.adaptive_avg_pool2d, operand_of(node), 1, shape=(*before.shape[:2], 1, 1))
        if setting(node, None, 2, "keepdim", False):
            replace(node, made, _DONE)
        else:
            note_rewrite(made, _DONE)
            flat = call(node, torch.flatten, made, 1)
            node.replace_all_uses_with(flat)
            region.graph.erase_node(node)
