"""For training: put a `QatBlock` in the place of every op with a quantized weight, at its own path.

The block takes in the batch norm that `pair_bn` found. Where the op stays in float after all, the norm is called again.
"""

from __future__ import annotations

from torch import Tensor, fx

from fxquant.core.graph import Region
from fxquant.core.paths import set_submodule
from fxquant.core.plan import note_of
from fxquant.core.spec import Spec
from fxquant.numerics.fold import BatchNorm
from fxquant.numerics.qat_block import QatBlock
from fxquant.numerics.weight_quant import WeightQuant

# (id of a weight, spec) -> the quantizer that all blocks of this weight share, in all regions
Shared = dict[tuple[int, Spec], WeightQuant]


def insert_blocks(region: Region, shared: Shared | None = None) -> Region:
    """Replace weighted modules by blocks; calls of one module share a block, tied weights share a quantizer."""
    shared = {} if shared is None else shared
    for node in list(region.graph.nodes):
        norm_path = node.meta.pop("norm", None)
        note = note_of(node)
        if note is None or note.weight is None:
            if norm_path is not None:
                _call_again(region, node, norm_path)
            continue
        module = region.get_submodule(str(node.target))
        if type(module) is QatBlock:
            continue
        weight = module.weight
        assert isinstance(weight, Tensor)
        norm = region.get_submodule(norm_path) if norm_path is not None else None
        assert norm is None or isinstance(norm, BatchNorm)
        key = (id(weight), note.weight)
        if key not in shared:
            shared[key] = WeightQuant(note.weight, f"{node.target}.weight", weight.shape)
        set_submodule(region, str(node.target), QatBlock(module, shared[key], norm, note.bias))
    region.recompile()
    return region


def _call_again(region: Region, node: fx.Node, path: str) -> None:
    with region.graph.inserting_after(node):
        call = region.graph.call_module(path, (node,))
    call.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor") if key in node.meta})
    node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
