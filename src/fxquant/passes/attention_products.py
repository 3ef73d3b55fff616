"""scaled_dot_product_attention(q, k, v)   ->   softmax(q k^T * scale + mask) v. Exact.

Where a mask of -inf leaves a query no key, attention gives 0, and a softmax would give NaN. So a mask that data, or
-inf, may be in is held above it, and a query without a key is set to 0 behind the products.

Calibration sees the op whole, since targets differ in that. What a kernel has to know of the inside is watched beside
it, under the name of the op and of the part: `attention:keys` are the keys turned, `attention:probabilities` what the
softmax gives.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx, nn

from fxquant.graph.nodes import TensorInfo, tensor_info
from fxquant.graph.notes import Rewrite
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.numerics.observers.probabilities import Probabilities
from fxquant.passes.hardware_form import call, note_rewrite
from fxquant.passes.read_op import setting

KEYS, PROBABILITIES = "keys", "probabilities"
_DONE = Rewrite(name="split_ops", text="two products and a softmax for attention, exact")


def part(node: fx.Node, name: str) -> str:
    """Return the name of a tensor inside of an op. No node of a graph can have it."""
    return f"{node.name}:{name}"


def of_part(tensor: str) -> tuple[str, str]:
    """Return the node that a tensor is inside of, and which it is there; nothing for the tensors of nodes."""
    op, _, name = tensor.partition(":")
    return op, name


def attention_products(region: Region, node: fx.Node) -> fx.Node | None:
    """Return the second product in the place of attention; None where that is not the same."""
    query, key, value, mask, scale = _read(node)
    rows, columns = tensor_info(query), tensor_info(key)
    if rows is None or columns is None or scale is None or not _is_plain(node, mask, rows, columns):
        return None
    size = (*rows.shape[:-1], columns.shape[-2])
    turned = call(node, torch.transpose, key, -2, -1, shape=(*columns.shape[:-2], *columns.shape[:-3:-1]))
    turned.meta["float_name"] = part(node, KEYS)
    scores = call(node, operator.mul, call(node, torch.matmul, query, turned, shape=size), scale, shape=size)
    closes, lowest = mask is not None and _may_close(region, mask), torch.finfo(rows.dtype).min
    if mask is not None:
        added = call(node, torch.clamp, mask, lowest) if closes else mask
        scores = call(node, operator.add, scores, added, shape=size)
    probabilities = call(node, torch.softmax, scores, -1, shape=size)
    probabilities.meta["float_name"] = part(node, PROBABILITIES)
    result = call(node, torch.matmul, probabilities, value)
    note_rewrite(result, _DONE)
    if mask is None or not closes:
        return result
    is_open = call(node, torch.any, call(node, operator.ge, mask, lowest), -1, True)
    return call(node, torch.where, is_open, result, 0.0)


def _may_close(region: Region, mask: fx.Node) -> bool:
    """Tell whether a mask may be -inf for all keys of a query: whether it is made of other than finite parameters."""
    found, todo = {mask}, [mask]
    while todo:
        source = todo.pop()
        if source.op == "get_attr":
            held = get_attr(region, str(source.target))
            if not isinstance(held, torch.Tensor) or not bool(torch.isfinite(held).all()):
                return True
        elif source.op in ("placeholder", "call_module") or -math.inf in source.args:
            return True
        todo += [given for given in source.all_input_nodes if given not in found]
        found.update(source.all_input_nodes)
    return False


def computed(node: fx.Node, name: str) -> tuple[nn.Module | None, tuple[fx.Node, ...]]:
    """Return what computes a tensor inside of attention, from which tensors; None for one that only turns another."""
    query, key, _, mask, scale = _read(node)
    if name == KEYS:
        return None, (key,)
    assert scale is not None
    return Probabilities(scale), (query, key) if mask is None else (query, key, mask)


def _read(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, fx.Node | None, float | None]:
    query, key, value, mask = (
        setting(node, None, place, name) for place, name in enumerate(("query", "key", "value", "attn_mask"))
    )
    scale, info = setting(node, None, 6, "scale"), tensor_info(query)
    if scale is None and info is not None and info.shape and info.shape[-1]:
        scale = 1.0 / math.sqrt(info.shape[-1])
    return query, key, value, mask, float(scale) if isinstance(scale, (int, float)) else None


def _is_plain(node: fx.Node, mask: object, rows: TensorInfo, columns: TensorInfo) -> bool:
    """Tell whether nothing is dropped, cut off or repeated, and a mask is one of numbers."""
    numbers = mask is None or (
        isinstance(mask, fx.Node) and (info := tensor_info(mask)) is not None and info.dtype == rows.dtype
    )
    given = (
        setting(node, None, place, name) for place, name in ((4, "dropout_p"), (5, "is_causal"), (7, "enable_gqa"))
    )
    return numbers and not any(given) and len(rows.shape) == len(columns.shape) >= 2
