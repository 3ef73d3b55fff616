"""Activations quantized on their own range: one kernel finds the range and quantizes, in place of four nodes.

choose_qparams(x) -> scale, zero_point; quantize(x, ...); dequantize(...)
  ->  q, scale, zero_point = quantize_dynamic(x); dequantize(q, scale, zero_point)
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.lower_layout import mark
from fxquant.graph import torch_compat
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import Layout
from fxquant.passes.convert_weights import replace_node

# of 8 bits and of 7; all become unsigned
_GRIDS = ((0, 255, torch.uint8), (-128, 127, torch.int8), (0, 127, torch.uint8), (-64, 63, torch.int8))


def lower_dynamic(region: Region) -> Region:
    """Rewrite the float32 ones of 8 or 7 bits; others stay as they are."""
    for node in list(region.graph.nodes):
        if node.target in (torch_compat.CHOOSE_QPARAMS, torch_compat.CHOOSE_QPARAMS_SYMMETRIC):
            source = node.args[0]
            assert isinstance(source, fx.Node)
            info = tensor_info(source)
            grid = (node.args[1], node.args[2], node.args[4])
            if grid in _GRIDS and info is not None and info.dtype == torch.float32:
                _rewrite(region.graph, node, source)
    return region


def _rewrite(graph: fx.Graph, choose: fx.Node, source: fx.Node) -> None:
    symmetric = choose.target is torch_compat.CHOOSE_QPARAMS_SYMMETRIC
    low, high, smallest = choose.args[1:4]
    with graph.inserting_before(choose):
        arguments = (source, symmetric, smallest, high - low)  # type: ignore[operator]
        parts = mark(graph.call_function(kernels.quantize_dynamic, arguments), Layout.EACH, 0)
        q, scale, zero = (graph.call_function(operator.getitem, (parts, index)) for index in range(3))
    for old in list(choose.users):
        new = scale if old.args[1] == 0 else zero
        replace_node(graph, old, new)
    for user in list(scale.users):
        if user.target is torch_compat.QUANTIZE_TENSOR:
            q.meta.update(user.meta)
            replace_node(graph, user, q)
    for user in list(q.users):
        with graph.inserting_before(user):
            dequantize = mark(graph.call_function(kernels.dequantize, (q, scale, zero)), Layout.EACH, 0)
        dequantize.meta.update(user.meta)
        replace_node(graph, user, dequantize)
    graph.erase_node(choose)
