"""For training: put a `QatBlock` in the place of every op with a quantized weight, at its own path.

The block takes in the batch norm that `pair_bn` found. Where the op stays in float after all, the norm is called again.
"""

from __future__ import annotations

from torch import Tensor, fx, nn

from fxquant.config.spec import Spec
from fxquant.graph.context import Context
from fxquant.graph.notes import note_of
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region
from fxquant.numerics.weights.fold_norm import BatchNorm
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant


def insert_blocks(region: Region, context: Context) -> None:
    """Replace ops with a quantized weight by blocks that train it; tied weights share a quantizer, in all regions."""
    put_blocks(region, context.shared)


def put_blocks(region: Region, shared: dict[tuple[int, Spec], nn.Module]) -> None:
    """Do so, where `shared` has the quantizers of weights by the ids of these; calls of a module share a block."""
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
            shared[key] = WeightFakeQuant(note.weight, f"{node.target}.weight", weight.shape)
        weight_fq = shared[key]
        assert isinstance(weight_fq, WeightFakeQuant)
        set_submodule(region, str(node.target), QatBlock(module, weight_fq, norm, note.bias))


def _call_again(region: Region, node: fx.Node, path: str) -> None:
    with region.graph.inserting_after(node):
        call = region.graph.call_module(path, (node,))
    call.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor") if key in node.meta})
    node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
