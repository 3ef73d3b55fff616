"""Weights that are stored as float16 and computed in the dtype that they had.

call_module fc (x)   ->  F.linear(x, get_attr fc.weight .to(float32), get_attr fc.bias)
call_module emb (i)  ->  the rows of the float16 table that were looked up, .to(float32)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.errors import CalibrationError
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable
from fxquant.passes.convert_weights import functional_call, pool, replace_node


def halve_weights(region: Region, ops: OpTable) -> None:
    """Rewrite the calls of modules whose weight is to be float16, and store it as that. Tied weights stay tied."""
    dtypes: dict[str, torch.dtype] = {}
    halves: dict[int, tuple[Tensor, nn.Parameter]] = {}  # with the float weight, so that its id stays its own
    for node in list(region.graph.nodes):
        note, op = note_of(node), ops.of_node(node, region)
        if note is None or not note.half or op is None:
            continue
        path = str(node.target)
        module = region.get_submodule(path)
        if path not in dtypes:
            dtypes[path] = _halve(module, path, halves)
        with region.graph.inserting_before(node):
            weight = region.graph.get_attr(f"{path}.weight")
            if op.is_lookup:
                index = node.args[0] if node.args else node.kwargs["input"]
                rows = region.graph.call_function(F.embedding, (index, weight))
                result = region.graph.call_method("to", (rows, dtypes[path]))
                if op.pools:
                    result = pool(region.graph, node, module, result)
            else:
                weight = region.graph.call_method("to", (weight, dtypes[path]))
                has_bias = getattr(module, "bias", None) is not None
                bias = region.graph.get_attr(f"{path}.bias") if has_bias else None
                result = functional_call(region.graph, node, op, module, weight, bias)
        result.meta.update(node.meta)
        replace_node(region.graph, node, result)


@torch.no_grad()
def round_halves(region: Region) -> None:
    """Give the weights that are to be float16 its values, in their own dtype, in place."""
    for node in region.graph.nodes:
        note = note_of(node)
        if note is not None and note.half:
            weight = region.get_submodule(str(node.target)).weight
            assert isinstance(weight, Tensor)
            weight.data.copy_(_half(weight, str(node.target)))


def _half(weight: Tensor, path: str) -> Tensor:
    half = weight.detach().to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise CalibrationError(
            f"weight {path + '.weight'!r} holds NaN, infinity or a value beyond float16 (65504). "
            "Leave its module in float (qconfig None)."
        )
    return half


def _halve(module: nn.Module, path: str, halves: dict[int, tuple[Tensor, nn.Parameter]]) -> torch.dtype:
    """Put the float16 weight in; the dtype that it had."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    if id(weight) not in halves:
        halves[id(weight)] = weight, nn.Parameter(_half(weight, path), requires_grad=False)
    module._parameters.pop("weight", None)
    module._buffers.pop("weight", None)
    module.register_parameter("weight", halves[id(weight)][1])
    return weight.dtype
