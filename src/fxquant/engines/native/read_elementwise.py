"""Quantize, dequantize, arithmetic and activations: expressions that one kernel computes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, fx, nn

from fxquant.engines.native.lazy import MOST_OPERANDS, Lazy, Outside, Value, join, lazy
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.pixels import Planes, quantize_planes
from fxquant.engines.native.read_acts import act_of, grid_of_quantize, is_channel_quantize
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.values import Buffer, Grid, View, broadcast, image
from fxquant.engines.read_qdq import is_dequantize, is_quantize
from fxquant.graph import torch_compat
from fxquant.ops.table import argument

_FEW = 4  # channels of a picture


def read_quantize(reader: Reader, node: fx.Node) -> Value:
    """On the grid already, or a kernel that rounds the expression."""
    if not is_quantize(node) and not is_channel_quantize(node):
        raise Unread("it quantizes in a way that kernels do not")
    grid = grid_of_quantize(reader, node)
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = reader.values[source]
    if grid.channels:
        return _quantize_channels(reader, node, grid)
    if isinstance(value, Outside):
        view = reader.take_in(value)
        return quantize_picture(reader, node, view, grid) or reader.compute(lazy(view), node, grid)
    if isinstance(value, View) and value.grid == grid:
        return value
    return reader.compute(value if isinstance(value, Lazy) else lazy(reader.view(source)), node, grid)


def _quantize_channels(reader: Reader, node: fx.Node, grid: Grid) -> View:
    """x times what its channel's scale is the inverse of, on a grid of the scale 1."""
    shape = reader.shape(node)
    inverse = 1.0 / torch.tensor(grid.channels, dtype=torch.float32, device="cpu")
    made = join("mul", _tensor(reader, node.args[0]), _per_channel(reader, inverse, len(shape)), shape)
    return replace(reader.compute(made, node, replace(grid, channels=())), grid=grid)


def quantize_picture(reader: Reader, node: fx.Node, view: View, grid: Grid) -> View | None:
    """Return a picture of few channels, without a gap between its pixels."""
    if len(view.shape) not in (3, 4) or view.shape[0] > _FEW or view.buffer.space != "slot":
        return None
    channels, *depth, height, width = view.shape
    out = image("u8", view.shape, reader.border(node) or (), grid, view.level + 1, tight=True)
    ends = {"low": grid.low, "high": grid.high, "nan": grid.nan}
    rows = math.prod((*depth, height))
    if depth:
        ends |= {"depth": height, "out_plane": out.strides[1]}
    spec = Planes(channels=channels, rows=rows, width=width, out_row=out.strides[-2], **ends)
    params = np.repeat(np.array([1.0 / grid.scale, grid.zero], np.float32), 16)
    reader.emit(
        quantize_planes,
        spec,
        (pointer(view), reader.constant(params), pointer(out)),
        [view],
        out,
        rows=rows,
        label=f"quantize {'x'.join(map(str, view.shape))}",
    )
    return out


def read_dequantize(reader: Reader, node: fx.Node) -> Value:
    """Return the integers themselves, on their grid."""
    value = reader.values[node.all_input_nodes[0]]
    if node.target is torch_compat.DEQUANTIZE_CHANNEL and isinstance(value, View) and value.grid is not None:
        if value.grid != grid_of_quantize(reader, node):
            raise Unread("it dequantizes with another grid")
        return value
    if not is_dequantize(node):
        raise Unread("it dequantizes in a way that kernels do not")
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = reader.values[source]
    if isinstance(value, View):
        return value
    shape = reader.shapes.get(source)
    if not isinstance(value, Outside) or not isinstance(shape, Shape) or not shape.batched or value.constant:
        raise Unread("its integers are not a tensor of the program")
    if shape.dtype != torch.uint8:
        raise Unread("kernels take uint8 tensors")
    return reader.slot_view(value, shape, grid_of_quantize(reader, node))


def operand(reader: Reader, argument_: object) -> Lazy | float:
    """Return what a kernel computes with: an expression, or a number."""
    if isinstance(argument_, (int, float)) and not isinstance(argument_, bool):
        return float(argument_)
    if not isinstance(argument_, fx.Node):
        raise Unread("an operand is not a tensor")
    value = reader.values[argument_]
    if isinstance(value, Outside):
        if reader.shapes.get(argument_) is None:
            raise Unread("an operand is not a tensor")
        return lazy(reader.take_in(value, same=True))
    return value if isinstance(value, Lazy) else lazy(reader.view(argument_))


def read_binary(reader: Reader, node: fx.Node) -> Value:
    """add, sub, mul and div, broadcast as torch does."""
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    if set(node.kwargs) - {"other"} or len(node.args) + len(node.kwargs) != 2:
        raise Unread("it has settings that the kernel lacks")
    first, second = argument(node, op, 0), argument(node, op, 1)
    name = str(getattr(node.target, "__name__", node.target))
    if name.startswith(("rsub", "__r")):
        first, second = second, first
    shape = reader.shape(node)
    found = reader.shapes[node]
    if found.dtype != torch.float32:
        raise Unread("its output is not float32")
    return settle(reader, _joined(reader, op.kind, first, second, shape), node)


def _joined(reader: Reader, kind: str, first: object, second: object, shape: tuple[int, ...]) -> Lazy:
    """Join two operands; those of too many tensors are computed before."""
    both = [operand(reader, each) for each in (first, second)]
    sizes = [len(each.operands) if isinstance(each, Lazy) else 0 for each in both]
    for each in sorted(range(2), key=lambda index: -sizes[index]):
        if sum(sizes) > MOST_OPERANDS and sizes[each] > 1:
            both[each] = lazy(reader.view((first, second)[each]))
            sizes[each] = 1
    return join(kind, both[0], both[1], shape)


def read_act(reader: Reader, node: fx.Node) -> Value:
    """Return a unary function."""
    act = act_of(reader, node)
    if act is None:
        raise Unread("it has settings that the kernel lacks")
    source = node.args[0] if node.args else next(iter(node.kwargs.values()))
    x = operand(reader, source)
    if not isinstance(x, Lazy) or reader.shapes[node].dtype != torch.float32:
        raise Unread("its output is not float32")
    return settle(reader, replace(x, expr=("act", act, x.expr)), node)


def settle(reader: Reader, made: Lazy, node: fx.Node) -> Value:
    """Compute what several nodes read, once; the rest is left to its reader."""
    if any(broadcast(view, made.shape) is None for view in made.operands):
        raise Unread("its operands do not broadcast sample by sample")
    return made if len(node.users) == 1 else reader.compute(made, node)


def read_same(reader: Reader, node: fx.Node) -> Value:
    """identity, dropout in eval mode: the operand as it is."""
    op = reader.table.of_node(node, reader.region)
    if op is not None and op.kind == "dropout":
        module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
        training = module.training if module is not None else argument(node, op, 2, True)
        if training is not False:
            raise Unread("dropout in train mode")
    source = node.args[0]
    if not isinstance(source, fx.Node) or isinstance(reader.values[source], Outside):
        raise Unread("its operand is not a tensor of the program")
    return reader.values[source]


def _per_channel(reader: Reader, values: Tensor, rank: int) -> Lazy:
    """Return a parameter with a number for each channel, the first axis of a sample."""
    if values.dtype != torch.float32 or values.device.type != "cpu":
        raise Unread("a parameter is not float32 on the CPU")
    offset = reader.constants.put(values.detach().contiguous().numpy())
    buffer = Buffer(dtype="f32", size=values.numel(), space="constant", offset=offset)
    shape = (values.numel(), *(1,) * (rank - 1))
    return lazy(View(buffer=buffer, shape=shape, strides=(1, *(0,) * (rank - 1))))


def read_batch_norm(reader: Reader, node: fx.Node) -> Value:
    """By the running statistics: x * scale + shift."""
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not isinstance(module, nn.modules.batchnorm._BatchNorm) or module.training or module.running_var is None:
        raise Unread("it takes statistics of the batch")
    assert module.running_mean is not None
    with torch.no_grad():
        scale = torch.rsqrt(module.running_var + module.eps)
        scale = scale if module.weight is None else scale * module.weight
        shift = -module.running_mean * scale
        shift = shift if module.bias is None else shift + module.bias
    shape = reader.shape(node)
    made = join("mul", _tensor(reader, node.args[0]), _per_channel(reader, scale, len(shape)), shape)
    return settle(reader, join("add", made, _per_channel(reader, shift, len(shape)), shape), node)


def read_prelu(reader: Reader, node: fx.Node) -> Value:
    """max(x, 0) + weight * min(x, 0)"""
    module = reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None
    weight = module.weight if isinstance(module, nn.PReLU) else reader.constant_of(node.args[1])
    shape = reader.shape(node)
    if not isinstance(weight, Tensor) or (weight.numel() > 1 and weight.numel() != shape[0]):
        raise Unread("its weight does not fit the channels")
    x = _tensor(reader, node.args[0])
    slope = _per_channel(reader, weight.detach().reshape(-1).expand(shape[0]), len(shape))
    low = join("mul", join("min", x, 0.0, shape), slope, shape)
    return settle(reader, join("add", join("max", x, 0.0, shape), low, shape), node)


def _tensor(reader: Reader, node: object) -> Lazy:
    found = operand(reader, node)
    if not isinstance(found, Lazy):
        raise Unread("an operand is not a tensor")
    return found
