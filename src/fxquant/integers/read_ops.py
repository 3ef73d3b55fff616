"""Which function reads which ATen op. What is elementwise, and not here, is a table (read_elementwise.pointwise)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from fxquant.integers.operands import Args
from fxquant.integers.read_elementwise import add, clip, hardsigmoid, hardswish, leaky_relu, mul
from fxquant.integers.read_moves import concat, expand, pad, permute, reshape, same, select, slice_, split
from fxquant.integers.read_weighted import conv, linear, matmul
from fxquant.integers.read_windows import adaptive_avg_pool, avg_pool, blended, max_pool, mean, nearest
from fxquant.integers.reader import Reader

aten = torch.ops.aten

READ: Mapping[Callable[..., Any], Callable[[Reader, fx.Node, Args], Any]] = MappingProxyType(
    {
        **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), conv),
        **dict.fromkeys((aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding), conv),
        **dict.fromkeys(
            (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input), conv
        ),
        aten.linear.default: linear,
        **dict.fromkeys((aten.matmul.default, aten.bmm.default), matmul),
        **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.add_.Tensor), add),
        **dict.fromkeys((aten.mul.Tensor, aten.mul_.Tensor), mul),
        **dict.fromkeys((aten.relu.default, aten.relu_.default, aten.relu6.default), clip),
        **dict.fromkeys(
            (aten.hardtanh.default, aten.hardtanh_.default, aten.clamp.default, aten.clamp_min.default), clip
        ),
        **dict.fromkeys((aten.leaky_relu.default, aten.leaky_relu_.default), leaky_relu),
        **dict.fromkeys((aten.hardswish.default, aten.hardswish_.default), hardswish),
        **dict.fromkeys((aten.hardsigmoid.default, aten.hardsigmoid_.default), hardsigmoid),
        **dict.fromkeys((aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default), max_pool),
        **dict.fromkeys((aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default), avg_pool),
        **dict.fromkeys(
            (aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default),
            adaptive_avg_pool,
        ),
        **dict.fromkeys((aten.mean.dim, aten.mean.default), mean),
        **dict.fromkeys(
            (
                *(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec),
                *(aten._upsample_nearest_exact1d.vec, aten._upsample_nearest_exact2d.vec),
            ),
            nearest,
        ),
        **dict.fromkeys(
            (aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec), blended
        ),
        aten.cat.default: concat,
        **dict.fromkeys(
            (
                *(aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int),
                *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default),
            ),
            reshape,
        ),
        **dict.fromkeys((aten.permute.default, aten.transpose.int, aten.t.default), permute),
        aten.slice.Tensor: slice_,
        aten.select.int: select,
        **dict.fromkeys((aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default), split),
        **dict.fromkeys((aten.pad.default, aten.constant_pad_nd.default), pad),
        aten.expand.default: expand,
        **dict.fromkeys((aten.dropout.default, aten.contiguous.default, aten.clone.default, aten.alias.default), same),
    }
)
