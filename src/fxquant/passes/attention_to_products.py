"""scaled_dot_product_attention(q, k, v)   ->   softmax(q k^T * scale + mask) v. Exact."""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.nodes import TensorInfo, tensor_info
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, replace, to_rewrite
from fxquant.passes.read_op import setting

_DONE = Rewrite(name="attention_to_products", text="two products and a softmax for attention, exact")


def attention_to_products(region: Region, context: Context) -> None:
    """Write attention as two products and a softmax, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "attention_to_products", ("attention",)):
        query, key, value = (setting(node, None, place, name) for place, name in enumerate(("query", "key", "value")))
        rows, columns = tensor_info(query), tensor_info(key)
        mask = setting(node, None, 3, "attn_mask")
        if rows is None or columns is None or not _is_plain(node, mask, rows, columns):
            continue
        size = (*rows.shape[:-1], columns.shape[-2])
        factor = setting(node, None, 6, "scale")
        turned = call(node, torch.transpose, key, -2, -1, shape=(*columns.shape[:-2], *columns.shape[:-3:-1]))
        scores = call(node, torch.matmul, query, turned, shape=size)
        scores = call(
            node, operator.mul, scores, 1.0 / math.sqrt(rows.shape[-1]) if factor is None else factor, shape=size
        )
        if mask is not None:
            scores = call(node, operator.add, scores, mask, shape=size)
        replace(node, call(node, torch.matmul, call(node, torch.softmax, scores, -1, shape=size), value), _DONE)


def _is_plain(node: fx.Node, mask: object, rows: TensorInfo, columns: TensorInfo) -> bool:
    """Tell whether nothing is dropped, cut off or repeated, and a mask is one of numbers."""
    numbers = mask is None or (
        isinstance(mask, fx.Node) and (info := tensor_info(mask)) is not None and info.dtype == rows.dtype
    )
    given = (
        setting(node, None, place, name) for place, name in ((4, "dropout_p"), (5, "is_causal"), (7, "enable_gqa"))
    )
    scale = setting(node, None, 6, "scale")
    return (
        numbers
        and not any(given)
        and (scale is None or isinstance(scale, (int, float)))
        and len(rows.shape) == len(columns.shape) >= 2
    )
