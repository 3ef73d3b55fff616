"""Settings of nodes: activations, and the grids of quantize nodes."""

from __future__ import annotations

import math

import torch
from torch import fx

from fxquant.engines.native.activations import KINDS, Act
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid
from fxquant.engines.onednn.support import clamp_bounds, setting
from fxquant.engines.onednn.unsigned import nan_of
from fxquant.engines.read_qdq import dtype_of, grid_of
from fxquant.graph import torch_compat


def act_of(reader: Reader, node: fx.Node) -> Act | None:
    """Return the activation that a node is; None if it is none that kernels have."""
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind not in KINDS:
        return None
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if op.kind == "clamp":
        if len(node.all_input_nodes) > 1:
            return None
        low, high = clamp_bounds(node, module)
        return Act(kind="clamp", args=(-math.inf if low is None else low, math.inf if high is None else high))
    if op.kind == "leaky_relu":
        return Act(kind="leaky_relu", args=(float(setting(node, module, 1, "negative_slope", 0.01)),))
    if op.kind == "elu":
        plain = float(setting(node, None, 2, "scale", 1.0)) == float(setting(node, None, 3, "input_scale", 1.0)) == 1.0
        return Act(kind="elu", args=(float(setting(node, module, 1, "alpha", 1.0)),)) if plain else None
    if op.kind == "gelu" and setting(node, module, 1, "approximate", "none") == "tanh":
        return Act(kind="gelu_tanh")
    return Act(kind=op.kind)


def grid_of_quantize(reader: Reader, node: fx.Node) -> Grid:
    """Return the grid of a quantize or dequantize node."""
    if node.target in (torch_compat.QUANTIZE_CHANNEL, torch_compat.DEQUANTIZE_CHANNEL):
        return _grid_per_channel(reader, node)
    scale, zero = grid_of(node)
    low, high = node.args[3:5]
    assert isinstance(low, int) and isinstance(high, int)
    if dtype_of(node) != torch.uint8:
        raise Unread("kernels take uint8 tensors")
    return Grid(scale=scale, zero=zero, low=low, high=high, nan=nan_of(node))


def is_channel_quantize(node: object) -> bool:
    """Tell whether a node quantizes to uint8 with a scale for each channel."""
    target = torch_compat.QUANTIZE_CHANNEL
    if not isinstance(node, fx.Node) or node.target is not target:
        return False
    return bool(node.args[3] == 1 and node.args[6] is torch.uint8)


def _grid_per_channel(reader: Reader, node: fx.Node) -> Grid:
    scales, zeros = (reader.constant_of(each) for each in node.args[1:3])
    axis, low, high, dtype = node.args[3:7]
    assert isinstance(low, int) and isinstance(high, int)
    if dtype != torch.uint8 or axis != 1 or node.kwargs.get("out_dtype") not in (None, torch.float32):
        raise Unread("kernels take uint8 tensors with a scale for each channel")
    if zeros is not None and not bool((zeros == zeros[0]).all()):
        raise Unread("its zero points differ, and a border has one")
    zero = 0 if zeros is None else int(zeros[0])
    return Grid(scale=1.0, zero=zero, low=low, high=high, channels=tuple(scales.double().tolist()))
