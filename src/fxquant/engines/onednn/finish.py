"""What torch's kernels cannot end with: sums and activations, computed in place over the kernel's float result.

    kernel -> [add dq] -> [leaky_relu] -> q    becomes    kernel -> finish, from the sums to integers in one buffer

torch has few activations for each kind of kernel (support.py), and a residual for conv2d and linear only. The result of
a kernel belongs to nobody else, so the rest of its group is written over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from fxquant.engines.onednn.kernel_modules import Kernel
from fxquant.engines.onednn.kernels import Grid, dequantize, quantize
from fxquant.engines.onednn.lower_layout import mark
from fxquant.engines.onednn.support import clamp_bounds
from fxquant.engines.read_qdq import grid_of, integers, is_dequantize, quantize_after, single_user
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import Layout, OpTable, activation_nodes
from fxquant.passes.read_op import setting

# kind -> the function that writes over its input
IN_PLACE: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu_,
    "clamp": torch.clamp_,
    "leaky_relu": F.leaky_relu_,
    "hardswish": lambda x: F.hardswish(x, inplace=True),
    "hardsigmoid": lambda x: F.hardsigmoid(x, inplace=True),
    "silu": lambda x: F.silu(x, inplace=True),
    "gelu": lambda x, approximate: torch.ops.aten.gelu_(x, approximate=approximate),
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
}


def finish(
    sums: Tensor,
    other: Tensor | None,
    grid: Grid,
    tail: str,
    settings: tuple[object, ...],
    end: tuple[float, int, int, int, torch.dtype],
) -> Tensor:
    """quantize(tail(sums + dequantize(other))), written over `sums`."""
    if other is not None:
        sums = sums.add_(dequantize(other, *grid))
    if tail:
        sums = IN_PLACE[tail](sums, *settings)
    return quantize(sums, *end)


def lower_finish(region: Region, ops: OpTable) -> None:
    """Put what follows a kernel with a float result, up to the quantize, into one call."""
    for node in list(region.graph.nodes):
        if node.op == "call_module" and isinstance(kernel := region.get_submodule(str(node.target)), Kernel):
            if not kernel.output.dtype.is_floating_point or kernel.accumulate is not None:
                continue
            _finish(region, node, ops)


def _finish(region: Region, node: fx.Node, ops: OpTable) -> None:
    add = _residual(region, node, ops)
    last = node if add is None else add
    other = None if add is None else next(operand for operand in add.all_input_nodes if operand is not node)
    tail = single_user(last)
    op = ops.of_node(tail, region) if tail is not None else None
    if tail is not None and op is not None and op.kind in IN_PLACE and tail.args[:1] == (last,):
        last = tail
    end = quantize_after(last)
    if end is None or last is node:
        return
    name = op.kind if op is not None and last is tail else ""
    arguments: tuple[Any, ...] = (
        node,
        None if other is None else integers(other),
        None if other is None else grid_of(other),
        name,
        _settings(region, last, name),
        end.args[1:],
    )
    with region.graph.inserting_before(end):
        call = region.graph.call_function(finish, arguments)
    call.meta.update(last.meta)
    places = (0,) if add is None else (0, 1) if add.args[0] is node else (1, 0)
    end.replace_all_uses_with(mark(call, Layout.EACH, *places))
    for dead in (end, *((tail,) if last is tail and tail is not None else ()), *((add,) if add is not None else ())):
        region.graph.erase_node(dead)


def _residual(region: Region, node: fx.Node, ops: OpTable) -> fx.Node | None:
    """Return the only user of a kernel's result, if it adds a dequantized tensor of the same shape."""
    add = single_user(node)
    op = ops.of_node(add, region) if add is not None else None
    if add is None or op is None or not op.adds or len(add.args) != 2 or add.kwargs:
        return None
    others = [operand for operand in activation_nodes(add, op) if operand is not node]
    if len(others) != 1 or not is_dequantize(others[0]):
        return None
    here, there = tensor_info(node), tensor_info(others[0])
    return add if here is not None and there is not None and here.shape == there.shape else None


def _settings(region: Region, node: fx.Node, kind: str) -> tuple[float | str | None, ...]:
    """Return the numbers that an activation has besides its input."""
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if kind == "clamp":
        return clamp_bounds(node, module)
    if kind == "leaky_relu":
        return (float(setting(node, module, 1, "negative_slope", 0.01)),)
    return (str(setting(node, module, 1, "approximate", "none")),) if kind == "gelu" else ()
