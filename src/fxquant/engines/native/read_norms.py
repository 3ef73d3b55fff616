"""Layer norm, group norm and instance norm, each with the quantize that follows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from fxquant.engines.native import group_norm
from fxquant.engines.native.group_norm import GroupNorm
from fxquant.engines.native.layouts import as_planes, in_planes, tall
from fxquant.engines.native.lazy import Value
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.read_acts import grid_of_quantize
from fxquant.engines.native.read_rows import dense_rows, emit_rows, order_of_rows
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.rows import Rows
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, dense, drop_height, image, round_up
from fxquant.engines.onednn.support import setting
from fxquant.engines.read_qdq import is_quantize, single_user


def _module(reader: Reader, node: fx.Node) -> nn.Module | None:
    return reader.region.get_submodule(str(node.target)) if node.op == "call_module" else None


def _affine(reader: Reader, node: fx.Node, places: tuple[int, int], count: int) -> list[NDArray[np.float32]]:
    """Weight and bias, padded; ones and zeros where there are none."""
    module, found = _module(reader, node), []
    for position, name in zip(places, ("weight", "bias"), strict=True):
        given = (
            getattr(module, name)
            if module is not None
            else reader.constant_of(setting(node, None, position, name, None))
        )
        values = torch.full((count,), 1.0 if name == "weight" else 0.0, device="cpu") if given is None else given
        if not isinstance(values, Tensor) or values.dtype != torch.float32 or values.device.type != "cpu":
            raise Unread("a parameter is not float32 on the CPU")
        padded = np.zeros(round_up(count), np.float32)
        padded[:count] = values.detach().numpy()
        found.append(padded)
    return found


def _grid_after(reader: Reader, node: fx.Node) -> tuple[fx.Node | None, Grid | None]:
    """Return the quantize that takes the output of a node, alone, and its grid."""
    after = single_user(node)
    if after is None or not is_quantize(after):
        return None, None
    return after, grid_of_quantize(reader, after)


def _numbers(*grids: Grid | None) -> NDArray[np.float32]:
    """Scale and zero of the first; 1 / scale and zero of the last; sixteen times each."""
    values: list[float] = []
    for index, grid in enumerate(grids):
        scale, zero = (1.0, 0.0) if grid is None else (grid.scale, float(grid.zero))
        values += (scale if index < len(grids) - 1 else 1.0 / scale, zero)
    return np.repeat(np.array(values, np.float32), 16)


def read_layer_norm(reader: Reader, node: fx.Node) -> Value:
    """Over the last axis."""
    module = _module(reader, node)
    shape = tuple(setting(node, module, 1, "normalized_shape", ()))
    eps = float(setting(node, module, 4, "eps", 1e-5))
    x = dense_rows(reader, reader.floats(node.args[0]))
    if len(shape) != 1:
        raise Unread("it normalizes over several axes")
    weight, bias = _affine(reader, node, (2, 3), shape[0])
    after, grid = _grid_after(reader, node)
    if grid is not None:
        weight = (weight.astype(np.float64) / grid.scale).astype(np.float32)
        bias = (bias.astype(np.float64) / grid.scale + grid.zero).astype(np.float32)
    params = np.concatenate((weight, bias))
    level = x.level + x.level % 2
    out = dense("f32" if grid is None else "u8", x.shape, order_of_rows(x), grid, level)
    low, high, nan = (0, 255, 0) if grid is None else (grid.low, grid.high, grid.nan)
    spec = Rows(kind="layer_norm", dims=(), length=shape[0], eps=eps, out=out.dtype, low=low, high=high, nan=nan)
    emit_rows(reader, spec, x, out, params, "layer norm")
    if after is not None:
        reader.taken[after] = out
    return out


def read_group_norm(reader: Reader, node: fx.Node) -> Value:
    """Over the pixels and some channels of an image."""
    module, channels = _module(reader, node), reader.shape(node)[0]
    op = reader.table.of_node(node, reader.region)
    assert op is not None
    if op.kind == "group_norm":
        groups = int(setting(node, module, 1, "num_groups", 1))
        eps = float(setting(node, module, 4, "eps", 1e-5))
    elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and not module.track_running_stats:
        groups, eps = channels, module.eps
    else:
        raise Unread("it takes statistics of other data, or its settings are arguments")
    view, shape = reader.view(node.args[0]), reader.shape(node)
    if len(shape) not in (2, 3, 4):
        raise Unread("it is no image")
    x = as_planes(reader, view)
    after, grid = _grid_after(reader, node)
    if len(shape) > 3:
        found = image("f32" if grid is None else "u8", shape, (), grid, x.level + x.level % 2)
        out = in_planes(found)
    else:
        out = reader.output(after or node, tall(shape), grid, x, x.level)
        found = out if len(shape) == 3 else drop_height(out)
    element, size = x.buffer.element, out.buffer.element
    spec = GroupNorm(
        channels=channels,
        groups=groups,
        rows=x.shape[1],
        width=x.shape[2],
        in_row=x.strides[1] * element,
        in_pixel=x.strides[2] * element,
        out_row=out.strides[1] * size,
        out_pixel=out.strides[2] * size,
        eps=eps,
        source=x.dtype,
        out=out.dtype,
        low=0 if grid is None else grid.low,
        high=255 if grid is None else grid.high,
        nan=0 if grid is None else grid.nan,
    )
    params = np.concatenate((*_affine(reader, node, (2, 3), channels), _numbers(x.grid, grid)))
    label = f"group norm {'x'.join(map(str, shape))} / {groups}"
    reader.emit(group_norm.emit, spec, (pointer(x), reader.constant(params), pointer(out)), [x], out, label=label)
    if after is not None:
        reader.taken[after] = found
    return found
