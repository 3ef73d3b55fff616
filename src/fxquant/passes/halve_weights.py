"""Weights that are stored as float16 and computed in the dtype that they had.

call_module fc (x)   ->  F.linear(x, get_attr fc.weight .to(float32), get_attr fc.bias)
call_module emb (i)  ->  the rows of the float16 table that were looked up, .to(float32)
get_attr fc.weight   ->  get_attr fc.weight .to(float32)        where other code reads what the module held
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fxquant.errors import CalibrationError
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import reads
from fxquant.ops.table import OpTable
from fxquant.passes.convert_weights import functional_call, pool, replace_node

HALVED = "_fxquant_halved"  # on a module with a float16 weight: the dtype that it had


def halve_weights(region: Region, ops: OpTable) -> None:
    """Rewrite the calls of modules whose weight is to be float16, and store it as that. Tied weights stay tied."""
    dtypes: dict[str, torch.dtype] = {}
    read = list(reads(region))
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
    for node, tensor in read:
        if id(tensor) in halves:
            widen(region.graph, node, tensor.dtype)


def widen(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    """Give the readers of a float16 weight its values in the dtype that it had."""
    with graph.inserting_after(node):
        values = graph.call_method("to", (node, dtype))
    node.replace_all_uses_with(values, delete_user_cb=lambda user: user is not values)


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
    module.__dict__[HALVED] = weight.dtype
    return weight.dtype
