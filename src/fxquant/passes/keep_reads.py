"""Tensors of ops that other code reads as well: a tied decoder, `h @ self.emb.weight.t()`; a penalty on the weights.

    get_attr "emb.weight"   ->   get_attr "emb_weight", the same tensor under a name of its own

Later passes put other tensors in the place of an op's: folded, equalized, as integers. What else reads them is to get
the float tensor, which goes on training with the op's.
"""

from __future__ import annotations

from torch import Tensor, nn

from fxquant.graph.context import Context
from fxquant.graph.paths import free_path, get_attr
from fxquant.graph.region import Region


def keep_reads(region: Region, context: Context) -> None:
    """Give the tensors of ops that other code reads as well a second name, which that code reads."""
    ops = {n.target for n in region.graph.nodes if n.op == "call_module" and context.ops.of_node(n, region) is not None}
    names: dict[str, str] = {}
    for node in region.graph.nodes:
        path = str(node.target)
        owner, _, name = path.rpartition(".")
        if node.op != "get_attr" or owner not in ops:
            continue
        value = get_attr(region, path)
        if isinstance(value, Tensor):
            if path not in names:
                names[path] = free_path(region, path.replace(".", "_"))
                _register(region, names[path], value, region.get_submodule(owner), name)
            node.target = names[path]


def _register(region: Region, path: str, value: Tensor, owner: nn.Module, name: str) -> None:
    if isinstance(value, nn.Parameter):
        region.register_parameter(path, value)
    else:
        region.register_buffer(path, value, persistent=name not in owner._non_persistent_buffers_set)
