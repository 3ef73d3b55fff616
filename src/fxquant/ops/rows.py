"""The rows of the op table, by role. To add an op: one row here (docs/adding_an_op.md).

A row lists the module classes, functions, methods and ATen packets that spell a kind, which arguments are activations,
how the op behaves under quantization (its `Role`), and the facts of `Op` that hold for it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from fxquant.ops.op import Layout, Op, Role
from fxquant.ops.reasons import (
    clamp_reason,
    div_reason,
    dropout_reason,
    einsum_reason,
    embedding_reason,
    interpolate_reason,
    max_pool_reason,
    pad_reason,
    view_reason,
)

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_T = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_BINARY = ("input", "other")


def compute() -> Iterable[Op]:
    """Ops that carry the arithmetic."""
    for dim, conv, conv_t, fn, fn_t in (
        (1, nn.Conv1d, nn.ConvTranspose1d, F.conv1d, F.conv_transpose1d),
        (2, nn.Conv2d, nn.ConvTranspose2d, F.conv2d, F.conv_transpose2d),
        (3, nn.Conv3d, nn.ConvTranspose3d, F.conv3d, F.conv_transpose3d),
    ):
        yield Op(
            kind=f"conv{dim}d",
            role=Role.COMPUTE,
            layout=Layout.CONV if dim < 3 else None,  # torch has several for volumes, which differ in it
            modules=(conv,),
            functions=(fn, getattr(torch, f"conv{dim}d")),
            aten=(f"conv{dim}d",),
            params=_CONV,
            functional=fn,
            weight="weight",
            weight_rank=dim + 2,
            channels_at=1,
            keeps_rank=True,
        )
        yield Op(
            kind=f"conv_transpose{dim}d",
            role=Role.COMPUTE,
            layout=Layout.CONV if dim < 3 else None,
            modules=(conv_t,),
            functions=(fn_t, getattr(torch, f"conv_transpose{dim}d")),
            aten=(f"conv_transpose{dim}d",),
            params=_CONV_T,
            functional=fn_t,
            weight="weight",
            channel_axis=1,
            weight_rank=dim + 2,
            channels_at=1,
            keeps_rank=True,
        )
    yield Op(
        kind="linear",
        role=Role.COMPUTE,
        keeps_rank=True,
        modules=(nn.Linear,),
        functions=(F.linear,),
        aten=("linear",),
        params=("input", "weight", "bias"),
        functional=F.linear,
        weight="weight",
        weight_rank=2,
        channels_at=-1,
    )
    yield Op(
        kind="embedding",
        role=Role.COMPUTE,
        modules=(nn.Embedding,),
        functions=(F.embedding, torch.embedding),
        aten=("embedding",),
        params=("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        operands=(),
        functional=F.embedding,
        weight="weight",
        weight_rank=2,
        unless=embedding_reason,
    )
    yield Op(
        kind="embedding_bag",
        role=Role.COMPUTE,
        modules=(nn.EmbeddingBag,),
        functions=(F.embedding_bag,),
        params=(
            *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse"),
            *("per_sample_weights", "include_last_offset", "padding_idx"),
        ),
        operands=(),
        functional=F.embedding_bag,
        pools=True,
        weight="weight",
        weight_rank=2,
        unless=embedding_reason,
    )
    yield Op(
        kind="matmul",
        role=Role.COMPUTE,
        functions=(torch.matmul, torch.linalg.matmul, torch.bmm, torch.mm, operator.matmul, operator.imatmul),
        methods=("matmul", "bmm", "mm", "__matmul__", "__rmatmul__"),
        aten=("matmul", "linalg_matmul", "bmm", "mm"),
        params=_BINARY,
        operands=(0, 1),
        inplace={operator.imatmul: operator.matmul},
    )
    # What is added may be a mask or a bias, so it stays in float.
    yield Op(
        kind="addmm",
        role=Role.COMPUTE,
        functions=(torch.addmm, torch.baddbmm),
        methods=("addmm", "addmm_", "baddbmm", "baddbmm_"),
        aten=("addmm", "addmm_", "baddbmm", "baddbmm_"),
        params=("input", "mat1", "mat2"),
        operands=(1, 2),
        inplace={"addmm_": "addmm", "baddbmm_": "baddbmm"},
    )
    yield Op(
        kind="einsum",
        role=Role.COMPUTE,
        functions=(torch.einsum,),
        aten=("einsum",),
        params=("equation", "operands", "operands"),
        operands=(1, 2),
        unless=einsum_reason,
    )
    # The value meets probabilities, most of which are too small for an 8-bit grid, so that product stays in float.
    yield Op(
        kind="attention",
        attends=True,
        role=Role.COMPUTE,
        functions=(F.scaled_dot_product_attention,),
        aten=("scaled_dot_product_attention",),
        params=("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
        operands=(0, 1),
    )


def own_range() -> Iterable[Op]:
    """Ops whose output has a range of its own."""
    yield Op(
        kind="batch_norm",
        role=Role.OWN_RANGE,
        is_norm=True,
        folds=True,
        keeps_rank=True,
        layout=Layout.POOL,
        modules=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        functions=(F.batch_norm, torch.batch_norm),
        aten=("batch_norm",),
        params=("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    )
    yield Op(
        kind="layer_norm",
        role=Role.OWN_RANGE,
        is_norm=True,
        keeps_rank=True,
        modules=(nn.LayerNorm,),
        functions=(F.layer_norm, torch.layer_norm),
        aten=("layer_norm",),
        params=("input", "normalized_shape", "weight", "bias", "eps"),
    )
    yield Op(
        kind="group_norm",
        role=Role.OWN_RANGE,
        is_norm=True,
        keeps_rank=True,
        modules=(nn.GroupNorm,),
        functions=(F.group_norm, torch.group_norm),
        aten=("group_norm",),
        params=("input", "num_groups", "weight", "bias", "eps"),
    )
    yield Op(
        kind="instance_norm",
        role=Role.OWN_RANGE,
        is_norm=True,
        keeps_rank=True,
        modules=(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        functions=(F.instance_norm, torch.instance_norm),
        aten=("instance_norm",),
    )
    for kind, dunder, aliases in (
        ("add", "add", ()),
        ("sub", "sub", ("subtract",)),
        ("mul", "mul", ("multiply",)),
        ("div", "truediv", ("divide", "true_divide")),
    ):
        names = (kind, *aliases)
        plain, in_place = getattr(operator, dunder), getattr(operator, f"i{dunder}")
        # rsub(x, y) is y - x: one kind with sub, as for `1 - x` in either capture
        reverse = ("rsub",) if kind == "sub" else ()
        yield Op(
            kind=kind,
            role=Role.OWN_RANGE,
            layout=Layout.EACH,
            functions=(*(getattr(torch, name) for name in (*names, *reverse)), plain, in_place),
            methods=(
                *names,
                *(f"{name}_" for name in names),
                *(f"__{dunder}__", f"__i{dunder}__", f"__r{dunder}__"),
            ),
            aten=(*names, *(f"{name}_" for name in names), *reverse),
            params=_BINARY,
            operands=(0, 1),
            inplace={
                in_place: plain,
                **{f"{name}_": name for name in names},
                f"__i{dunder}__": f"__{dunder}__",
            },
            adds=kind == "add",
            multiplies=kind == "mul",
            divides=kind == "div",
            unless=div_reason if kind == "div" else None,
        )
    yield Op(
        kind="mean",
        role=Role.OWN_RANGE,
        averages=True,
        layout=Layout.NEW,
        functions=(torch.mean,),
        methods=("mean",),
        aten=("mean",),
    )
    yield Op(
        kind="sum", role=Role.OWN_RANGE, layout=Layout.NEW, functions=(torch.sum,), methods=("sum",), aten=("sum",)
    )
    yield Op(
        kind="leaky_relu",
        keeps_factor=True,
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.LeakyReLU,),
        functions=(F.leaky_relu, F.leaky_relu_),
        aten=("leaky_relu", "leaky_relu_"),
        inplace={F.leaky_relu_: F.leaky_relu},
    )
    yield Op(
        kind="prelu",
        role=Role.OWN_RANGE,
        modules=(nn.PReLU,),
        functions=(F.prelu, torch.prelu),
        methods=("prelu",),
        aten=("prelu",),
        params=("input", "weight"),
    )
    yield Op(
        kind="elu",
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.ELU,),
        functions=(F.elu, F.elu_),
        aten=("elu", "elu_"),
        inplace={F.elu_: F.elu},
    )
    yield Op(
        kind="hardswish",
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.Hardswish,),
        functions=(F.hardswish,),
        aten=("hardswish", "hardswish_"),
        gate=F.hardsigmoid,
    )
    yield Op(
        kind="silu",
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.SiLU,),
        functions=(F.silu,),
        aten=("silu", "silu_"),
        gate=torch.sigmoid,
    )
    yield Op(
        kind="mish",
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.Mish,),
        functions=(F.mish,),
        aten=("mish", "mish_"),
    )
    yield Op(
        kind="gelu",
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.GELU,),
        functions=(F.gelu,),
        aten=("gelu", "gelu_"),
    )
    yield Op(
        kind="avg_pool",
        keeps_factor=True,
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.POOL,
        modules=(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        functions=(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.avg_pool1d),
        aten=("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        window="given",
    )
    yield Op(
        kind="adaptive_avg_pool",
        keeps_factor=True,
        role=Role.OWN_RANGE,
        keeps_rank=True,
        layout=Layout.POOL,
        modules=(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        functions=(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, torch.adaptive_avg_pool1d),
        aten=(
            *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
            *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        ),
        window="parts",
    )


def fixed() -> Iterable[Op]:
    """Ops whose range is known beforehand."""
    yield Op(
        kind="sigmoid",
        role=Role.FIXED,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.Sigmoid,),
        functions=(torch.sigmoid, F.sigmoid, torch.sigmoid_, torch.special.expit),
        methods=("sigmoid", "sigmoid_"),
        aten=("sigmoid", "sigmoid_", "special_expit"),
        inplace={torch.sigmoid_: torch.sigmoid, "sigmoid_": "sigmoid"},
        range=(0.0, 1.0),
    )
    yield Op(
        kind="hardsigmoid",
        role=Role.FIXED,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.Hardsigmoid,),
        functions=(F.hardsigmoid,),
        aten=("hardsigmoid", "hardsigmoid_"),
        range=(0.0, 1.0),
    )
    yield Op(
        kind="tanh",
        role=Role.FIXED,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.Tanh,),
        functions=(torch.tanh, F.tanh, torch.tanh_),
        methods=("tanh", "tanh_"),
        aten=("tanh", "tanh_"),
        inplace={torch.tanh_: torch.tanh, "tanh_": "tanh"},
        range=(-1.0, 1.0),
    )
    # The input of a softmax is never quantized: it may carry an additive mask, and exp() amplifies rounding.
    yield Op(
        kind="softmax",
        role=Role.FIXED,
        keeps_rank=True,
        modules=(nn.Softmax, nn.Softmax2d),
        functions=(F.softmax, torch.softmax, torch.special.softmax),
        methods=("softmax",),
        aten=("softmax", "_softmax", "special_softmax"),
        operands=(),
        range=(0.0, 1.0),
    )


def share() -> Iterable[Op]:
    """Ops whose output lives on the grid of its input."""
    yield Op(
        kind="relu",
        keeps_factor=True,
        picks=True,
        role=Role.SHARE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.ReLU,),
        functions=(F.relu, torch.relu, F.relu_, torch.relu_),
        methods=("relu", "relu_"),
        aten=("relu", "relu_"),
        inplace={F.relu_: F.relu, torch.relu_: torch.relu, "relu_": "relu"},
    )
    yield Op(
        kind="clamp",
        clips=True,
        role=Role.SHARE,
        keeps_rank=True,
        layout=Layout.EACH,
        modules=(nn.ReLU6, nn.Hardtanh),
        functions=(
            *(F.relu6, F.hardtanh, F.hardtanh_, torch.clamp, torch.clip, torch.clamp_min, torch.clamp_max),
            *(torch.clamp_, torch.clip_, torch.clamp_min_, torch.clamp_max_),
        ),
        methods=("clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_"),
        aten=(
            *("hardtanh", "hardtanh_", "relu6", "relu6_", "clamp", "clamp_", "clip", "clip_"),
            *("clamp_min", "clamp_max", "clamp_min_", "clamp_max_"),
        ),
        inplace={
            F.hardtanh_: F.hardtanh,
            torch.clamp_: torch.clamp,
            torch.clip_: torch.clip,
            torch.clamp_min_: torch.clamp_min,
            torch.clamp_max_: torch.clamp_max,
            "clamp_": "clamp",
            "clip_": "clip",
            "clamp_min_": "clamp_min",
            "clamp_max_": "clamp_max",
        },
        unless=clamp_reason,
    )
    yield Op(
        kind="max_pool",
        keeps_factor=True,
        picks=True,
        role=Role.SHARE,
        keeps_rank=True,
        layout=Layout.POOL,
        modules=(
            *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
            *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        ),
        functions=(
            *(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
            *(F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices),
            *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
            *(F.adaptive_max_pool1d_with_indices, F.adaptive_max_pool2d_with_indices),
            F.adaptive_max_pool3d_with_indices,
        ),
        aten=(
            *("max_pool1d", "max_pool2d", "max_pool3d"),
            *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
            *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        ),
        unless=max_pool_reason,
    )
    yield Op(
        kind="interpolate",
        keeps_factor=True,
        role=Role.SHARE,
        keeps_rank=True,
        layout=Layout.POOL,
        modules=(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
        functions=(F.interpolate, F.upsample, F.upsample_nearest, F.upsample_bilinear),
        aten=(
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
            *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
            *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        ),
        unless=interpolate_reason,
    )
    yield Op(
        kind="cat",
        role=Role.SHARE,
        moves=True,
        keeps_rank=True,
        layout=Layout.CAT,
        functions=(
            *(torch.cat, torch.concat, torch.concatenate),
            *(torch.hstack, torch.vstack, torch.dstack, torch.row_stack, torch.column_stack),
        ),
        aten=("cat", "concat", "concatenate", "hstack", "vstack", "dstack", "row_stack", "column_stack"),
        params=("tensors", "dim"),
    )
    yield Op(
        kind="stack", role=Role.SHARE, moves=True, functions=(torch.stack,), aten=("stack",), params=("tensors", "dim")
    )
    yield Op(
        kind="pad",
        role=Role.SHARE,
        keeps_rank=True,
        keeps_factor=True,
        modules=(
            *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
            *(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
            *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
            *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
            *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
        ),
        functions=(F.pad, torch.constant_pad_nd),
        aten=(
            *("pad", "constant_pad_nd"),
            *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
            *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
        ),
        params=("input", "pad", "mode", "value"),
        unless=pad_reason,
    )
    yield Op(
        kind="pixel_shuffle",
        role=Role.SHARE,
        moves=True,
        modules=(nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
        functions=(
            *(F.pixel_shuffle, F.pixel_unshuffle, torch.pixel_shuffle, torch.pixel_unshuffle),
            *(torch.channel_shuffle, F.channel_shuffle),
        ),
        aten=("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    )
    yield Op(
        kind="reshape",
        role=Role.SHARE,
        is_view=True,
        moves=True,
        modules=(nn.Flatten, nn.Unflatten),
        functions=(torch.reshape, torch.flatten, torch.unflatten, torch.ravel),
        methods=("reshape", "view", "flatten", "unflatten", "reshape_as", "view_as", "ravel"),
        aten=("reshape", "view", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel"),
        unless=view_reason,
    )
    yield Op(
        kind="permute",
        role=Role.SHARE,
        is_view=True,
        moves=True,
        functions=(
            *(torch.permute, torch.transpose, torch.swapaxes, torch.swapdims, torch.t, torch.adjoint),
            *(torch.movedim, torch.moveaxis),
        ),
        methods=(
            *("permute", "transpose", "swapaxes", "swapdims", "t", "adjoint", "movedim", "moveaxis"),
            *("transpose_", "swapaxes_", "swapdims_", "t_"),
        ),
        aten=(
            *("permute", "transpose", "swapaxes", "swapdims", "t", "adjoint", "movedim", "moveaxis"),
            *("transpose_", "swapaxes_", "swapdims_", "t_", "numpy_T", "matrix_H", "mT", "mH"),
        ),
        inplace={f"{name}_": name for name in ("transpose", "swapaxes", "swapdims", "t")},
        attributes={
            "T": torch.ops.aten.numpy_T.default,
            "H": torch.ops.aten.matrix_H.default,
            "mT": torch.ops.aten.mT.default,
            "mH": torch.ops.aten.mH.default,
        },
    )
    yield Op(
        kind="squeeze",
        role=Role.SHARE,
        is_view=True,
        moves=True,
        functions=(torch.squeeze, torch.unsqueeze),
        methods=("squeeze", "unsqueeze", "squeeze_", "unsqueeze_"),
        aten=("squeeze", "unsqueeze", "squeeze_", "unsqueeze_"),
        inplace={"squeeze_": "squeeze", "unsqueeze_": "unsqueeze"},
    )
    yield Op(
        kind="slice",
        role=Role.SHARE,
        is_view=True,
        moves=True,
        functions=(operator.getitem, torch.select, torch.narrow, torch.index_select, torch.gather),
        methods=("__getitem__", "select", "narrow", "index_select", "gather"),
        aten=("slice", "select", "narrow", "index", "index_select", "gather"),
    )
    yield Op(
        kind="split",
        role=Role.SHARE,
        is_view=True,
        layout=Layout.PART,
        functions=(torch.split, torch.split_with_sizes, torch.chunk, torch.unbind, torch.tensor_split),
        methods=("split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
        aten=("split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
    )
    yield Op(
        kind="expand",
        role=Role.SHARE,
        is_view=True,
        moves=True,
        functions=(torch.broadcast_to, torch.tile, torch.repeat_interleave, torch.roll, torch.flip),
        methods=("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "roll", "flip"),
        aten=("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "roll", "flip"),
    )
    yield Op(
        kind="identity",
        role=Role.SHARE,
        may_be_input=True,
        moves=True,
        keeps_rank=True,
        noop=True,
        functions=(torch.clone, torch.detach),
        methods=("contiguous", "clone", "detach"),
        modules=(nn.Identity,),
        aten=("contiguous", "clone", "detach", "alias", "lift_fresh_copy"),
    )
    yield Op(
        kind="dropout",
        role=Role.SHARE,
        may_be_input=True,
        keeps_rank=True,
        noop=True,
        random=True,
        unless=dropout_reason,
        modules=(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
        functions=(
            *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
            *(torch.dropout, torch.dropout_, torch.feature_dropout, torch.feature_dropout_),
        ),
        aten=("dropout", "dropout_", "feature_dropout", "feature_dropout_"),
        params=("input", "p", "training", "inplace"),
        inplace={torch.dropout_: torch.dropout, torch.feature_dropout_: torch.feature_dropout},
    )


def in_float() -> Iterable[Op]:
    """Ops that are known, and stay in float."""
    # A cast to the dtype that the tensor has is dropped (passes/drop_noops.py); any other leaves the grid.
    yield Op(
        kind="cast",
        role=Role.FLOAT,
        may_be_input=True,
        casts=True,
        methods=("to", "float", "type_as"),
        aten=("to", "_to_copy", "type_as"),
    )
