"""Crafted files: ops and modules that trust their arguments, regions inside of regions, names that read as others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import EMPTY, File, X, hide_tensor, identity
from forge.growth import rows

NN = "torch.nn.modules"


def trusting() -> Iterator[tuple[str, str, Any]]:
    """(name, base file, change)."""
    yield from _names()
    yield from _ops()
    yield from _classes()
    yield from _inside()
    yield from _engines()


def _wide(word: str) -> str:
    """A text that Python's parser reads as `word`, and nothing else does."""
    return chr(ord(word[0]) + 0xFEE0) + word[1:]


def _names() -> Iterator[tuple[str, str, Any]]:
    for word in ("to_folder", "apply", "forward", "print_readable", "register_buffer", "compile", "share_memory"):
        yield f"module that reads as {word}", "conv", partial(_hidden, word=_wide(word))
    for word in ("graph", "code", "_region", "_modules", "forward"):
        yield f"tensor that reads as {word}", "conv", partial(hide_tensor, word=_wide(word))
    for word in ("out", "generator", "dtype", "names"):
        kwargs = ["dict", [_wide(word), ["node", "input_1"]]]
        yield f"argument that reads as {word}", "conv", partial(_call, target="torch.relu", args=[X], kwargs=kwargs)
    for word in ("self", "torch", "getattr", "inf", "device", _wide("self"), "__class__", "__debug__", "ª", "x²", "_"):
        yield f"placeholder named {word}", "conv", partial(_placeholder, word=word)
    for word in ("self", "torch", "getattr", "__debug__", "None", "inf", "_", "__class__"):
        yield f"node named {word}", "conv", partial(_node_name, word=word)


def _hidden(file: File, word: str) -> None:
    file.header["modules"][word] = identity()
    file.insert("call_module", word, ["tuple", "forged_folder"])


def _call(file: File, target: str, args: list[Any], kwargs: Any = EMPTY) -> None:
    file.insert("call_function", target, ["tuple", *args], kwargs)


def _placeholder(file: File, word: str) -> None:
    file.graph[0][2] = word


def _node_name(file: File, word: str) -> None:
    text = str(file.header["modules"][""]["graph"])
    name = file.graph[1][1]
    assert name in text
    for row in file.graph:
        row[1] = word if row[1] == name else row[1]
        for place in (3, 4):
            row[place] = _renamed(row[place], name, word)


def _renamed(value: Any, old: str, new: str) -> Any:
    if value == ["node", old]:
        return ["node", new]
    return [_renamed(item, old, new) for item in value] if isinstance(value, list) else value


def _ops() -> Iterator[tuple[str, str, Any]]:
    """Each makes what it needs in nodes a, b, c, and calls one op on them."""
    many, wide = ["list", 1, 10**6, 1, 1], ["node", "a"]
    small, one = ["node", "b"], ["node", "c"]
    made: list[tuple[str, str, Any]] = [("a", "torch.ones", [many]), ("b", "torch.ones", [1]), ("c", "torch.ones", [2])]
    aten = "torch.ops.aten."
    calls: dict[str, list[Any]] = {
        "_reshape_alias.default": [X, ["list", 10**6], ["list", 10**6]],
        "_reshape_alias.default 2": [X, ["list", 100], ["list", -(10**9)]],
        "native_batch_norm.default": [wide, small, small, small, small, True, 0.1, 1e-5],
        "native_batch_norm.default 2": [wide, None, None, small, small, True, 0.1, 1e-5],
        "native_batch_norm.default 3": [wide, small, small, small, small, False, 0.1, 1e-5],
        "_native_batch_norm_legit_no_training.default": [wide, small, small, small, small, 0.1, 1e-5],
        "batch_norm.default": [wide, small, small, small, small, True, 0.1, 1e-5, False],
        "native_group_norm.default": [X, None, None, 10**4, 3, 10**4, 1, 1e-5],
        "native_group_norm.default 2": [X, None, None, 2, 3, 64, 0, 1e-5],
        "native_group_norm.default 3": [wide, small, small, 1, 10**6, 1, 1, 1e-5],
        "native_layer_norm.default": [X, ["list", 8], small, small, 1e-5],
        "native_channel_shuffle.default": [X, 0],
        "native_channel_shuffle.default 2": [X, -1],
        "channel_shuffle.default": [X, 0],
        "pixel_shuffle.default": [X, 0],
        "pixel_unshuffle.default": [X, -2],
        "upsample_nearest2d.default": [X, ["list", 4, 4], 1e-320, 1e-320],
        "upsample_nearest2d.default 2": [X, ["list", 4, 4], -1.0, 1e-30],
        "_upsample_nearest_exact2d.default": [X, ["list", 4, 4], 1e-320, 1e-30],
        "upsample_bilinear2d.default": [X, ["list", 4, 4], False, 1e-320, 1e-30],
        "upsample_bicubic2d.default": [X, ["list", 4, 4], False, 1e-320, 1e-30],
        "_upsample_bilinear2d_aa.default": [X, ["list", 4, 4], False, 1e-9, 1e-9],
        "_upsample_bicubic2d_aa.default": [X, ["list", 4, 4], False, 1e-9, 1e-9],
        "upsample_nearest2d.vec": [X, None, ["list", 1e-320, 1e-320]],
        "upsample_nearest1d.default": [["node", "r"], ["list", 4], 1e-320],
        "upsample_linear1d.default": [["node", "r"], ["list", 4], False, 1e-320],
        "grid_sampler_2d.default": [X, ["node", "g"], 7, 9, False],
        "grid_sampler.default": [X, ["node", "g"], 0, 0, True],
        "avg_pool2d.default": [X, ["list", 2, 2], ["list", 0, 0]],
        "avg_pool2d.default 2": [X, ["list", 2, 2], ["list", 1, 1], ["list", 0, 0], False, True, 0],
        "max_pool2d.default": [X, ["list", 2, 2], ["list", 0, 0]],
        "im2col.default": [X, ["list", 2, 2], ["list", 0, 0], ["list", 0, 0], ["list", 0, 0]],
        "col2im.default": [["node", "r"], ["list", 8, 8], ["list", 1, 1], *[["list", 1, 1]] * 2, ["list", 0, 0]],
        "unfold.default": [X, 0, 1, 0],
        "conv_tbc.default": [["node", "r"], ["node", "r"], one, 10**9],
        "searchsorted.Tensor": [["node", "s"], ["node", "s"]],
        "stft.default": [["node", "s"], 0],
        "stft.default 2": [["node", "s"], 4, 0],
        "embedding.default": [["node", "r2"], ["node", "i"]],
        "take.default": [X, ["node", "i"]],
        "gather.default": [["node", "s"], 0, ["node", "i"]],
        "index_select.default": [["node", "s"], 0, ["node", "i"]],
        "index.Tensor": [["node", "s"], ["list", ["node", "i"]]],
        "index_put.default": [["node", "s"], ["list", ["node", "i"]], small],
        "scatter.value": [["node", "s"], 0, ["node", "i"], 1.0],
        "scatter_add.default": [["node", "s"], 0, ["node", "i"], ["node", "s"]],
        "index_add.default": [["node", "s"], 0, ["node", "i"], ["node", "s"]],
        "index_copy.default": [["node", "s"], 0, ["node", "i"], ["node", "s"]],
        "index_fill.int_Scalar": [["node", "s"], 0, ["node", "i"], 1.0],
        "nll_loss.default": [["node", "r2"], ["node", "i2"]],
        "nll_loss_nd.default": [["node", "r2"], ["node", "i2"]],
        "cross_entropy_loss.default": [["node", "r2"], ["node", "i2"]],
        "multi_margin_loss.default": [["node", "r2"], ["node", "i2"]],
        "max_unpool2d.default": [X, ["node", "i4"], ["list", 8, 8]],
        "max_unpool3d.default": [X, ["node", "i4"], ["list", 8, 8, 8], ["list", 0, 0, 0], ["list", 0, 0, 0]],
        "linalg_matrix_power.default": [["node", "r2"], 2**62],
        "matrix_exp.default": [["node", "bad"]],
        "linalg_eigh.default": [["node", "bad"]],
        "linalg_svd.default": [["node", "bad"]],
        "linalg_pinv.default": [["node", "bad"]],
        "cumsum.default": [X, 99],
        "kthvalue.default": [["node", "s"], 10**9],
        "topk.default": [["node", "s"], 10**9],
        "randperm.default": [-1],
        "renorm.default": [X, 0.0, 0, -1.0],
        "narrow.default": [["node", "s"], 0, 10**9, 1],
        "diagonal.default": [X, 10**9],
        "select.int": [X, 0, -(10**9)],
        "unflatten.int": [X, 0, ["list", -1, 0]],
        "view.default": [X, ["list", -1, 0]],
        "lstm.data": [
            *(["node", "s"], ["node", "i"], ["list", ["node", "r2"], ["node", "r2"]]),
            *(["list", *[["node", "r2"]] * 4], False, 1, 0.0, False, False),
        ],
        "gru_cell.default": [["node", "r2"], ["node", "r2"], ["node", "r2"], ["node", "r2"]],
        "prelu.default": [wide, one],
        "addr.default": [["node", "s"], ["node", "s"], one],
        "histc.default": [X, 10**9],
        "repeat_interleave.Tensor": [["node", "i"]],
        "unique_consecutive.default": [X, True, True, 99],
        "quantile.default": [X, ["node", "s"]],
        "isin.Tensor_Tensor": [X, X],
        "bucketize.Tensor": [X, ["node", "i"]],
        "fft_irfft.default": [["node", "s"], 10**12],
        "remainder.int": [0, 0],
        "floor_divide.Scalar": [X, 0],
        "pow.int": [9, 2**40],
        "mul.left_t": [["list", 1], 2**40],
        "add.t": [["list", 1], ["list", 2]],
        "sort.int": [["list", 2, 1]],
        "slice.str": ["abc", 0, 2, 0],
        "index.list_int": [["list", 1], 2],
        "_assert_async.default": [small],
        "normal.float_float": [0.0, -1.0, ["list", 2, 2]],
        "_softmax.default": [X, 99, False],
        "local_response_norm": [X, 2**30],
    }
    made += [
        ("s", "torch.arange", [8]),
        ("i", "torch.full", [["list", 8], 10**9]),
        ("i2", "torch.full", [["list", 4], 10**9]),
        ("i4", "torch.full_like", [X, 10**9]),
        ("r", "torch.ones", [["list", 2, 4, 8]]),
        ("r2", "torch.ones", [["list", 4, 4]]),
        ("bad", "torch.full", [["list", 4, 4], ["float", "nan"]]),
        ("g", "torch.full", [["list", 2, 4, 4, 2], ["float", "nan"]]),
        ("s64", ".long", [["node", "s"]]),
    ]
    for name, args in calls.items():
        target = name.split(" ")[0]
        full = f"{aten}{target}" if "." in target else f"torch.nn.functional.{target}"
        indexed = [
            ("i", ".long", [["node", "i_"]]),
            ("i2", ".long", [["node", "i2_"]]),
            ("i4", ".long", [["node", "i4_"]]),
        ]
        start = [(f"{key}_" if key in ("i", "i2", "i4") else key, what, how) for key, what, how in made]
        call = [*start, *indexed, ("evil", full, args)]
        yield f"op {name}", "conv", partial(_rows, made=call)
    for name in ("dtype", "layout", "memory_format", "device"):
        target = f"{aten}clone.default" if name == "memory_format" else f"{aten}zeros_like.default"
        for value in (-1, -2, 6, 10**6, 2**31, 2**40, True, ["node", "n"]):
            yield f"{name} {value} of an op", "conv", partial(_numbered, target=target, name=name, value=value)
    sorter = ["dict", ["sorter", ["node", "i"]]]
    yield "op searchsorted with a sorter", "conv", partial(_sorted, start=made, kwargs=sorter)


def _rows(file: File, made: list[tuple[str, str, Any]]) -> None:
    rows(file, *made)


def _numbered(file: File, target: str, name: str, value: Any) -> None:
    rows(file, ("n", ".size", [X, 0]), ("evil", target, [X]))
    file.row(target)[4] = ["dict", [name, value]]


def _sorted(file: File, start: list[tuple[str, str, Any]], kwargs: Any) -> None:
    names = [(f"{key}_" if key == "i" else key, what, how) for key, what, how in start]
    args = [["node", "s"], ["node", "s"]]
    rows(file, *names, ("i", ".long", [["node", "i_"]]), ("evil", "torch.searchsorted", args))
    next(row for row in file.graph if row[1] == "evil")[4] = kwargs


def _classes() -> Iterator[tuple[str, str, Any]]:
    calls: dict[str, tuple[list[Any], list[Any]]] = {
        "loss.CTCLoss": (
            [["blank", 0], ["zero_infinity", False], ["reduction", "mean"]],
            [["node", "p"], ["node", "i"], ["node", "l"], ["node", "l"]],
        ),
        "normalization.CrossMapLRN2d": ([["size", 2**31 - 1], ["alpha", 1.0], ["beta", 0.5], ["k", 1]], [X]),
        "normalization.LocalResponseNorm": ([["size", 2**30], ["alpha", 1.0], ["beta", 0.5], ["k", 1.0]], [X]),
        "sparse.EmbeddingBag": (
            [
                *(["num_embeddings", 4], ["embedding_dim", 4], ["mode", "sum"], ["max_norm", None], ["norm_type", 2.0]),
                *(["scale_grad_by_freq", False], ["sparse", False], ["include_last_offset", False]),
                ["padding_idx", None],
            ],
            [["node", "i"], ["node", "l"]],
        ),
        "loss.MultiLabelMarginLoss": ([["reduction", "mean"]], [["node", "r2"], ["node", "i2"]]),
        "loss.MultiMarginLoss": ([["p", 1], ["margin", 1.0], ["reduction", "mean"]], [["node", "r2"], ["node", "i"]]),
        "batchnorm.SyncBatchNorm": (
            [["num_features", 3], ["eps", 1e-5], ["momentum", 0.1], ["affine", False], ["track_running_stats", False]],
            [X],
        ),
        "pooling.FractionalMaxPool2d": (
            [
                *(["kernel_size", 2], ["output_size", ["tuple", 100, 100]], ["output_ratio", None]),
                *(["return_indices", False], ["_random_samples", None]),
            ],
            [X],
        ),
        "pooling.MaxUnpool2d": (
            [["kernel_size", 2], ["stride", 2], ["padding", 0]],
            [X, ["node", "i4"]],
        ),
        "channelshuffle.ChannelShuffle": ([["groups", 3]], [X]),
        "fold.Fold": (
            [["output_size", 2**30], ["kernel_size", 1], ["dilation", 1], ["padding", 0], ["stride", 1]],
            [["node", "p"]],
        ),
        "padding.ReflectionPad2d": ([["padding", ["tuple", 2**30, 0, 0, 0]]], [X]),
        "padding.CircularPad2d": ([["padding", ["tuple", -7, -7, 0, 0]]], [X]),
        "dropout.Dropout": ([["p", -5.0], ["inplace", True]], [X]),
        "flatten.Unflatten": ([["dim", 1], ["unflattened_size", ["tuple", 3, 0, -1]]], [X]),
    }
    for cls, (settings, args) in calls.items():
        yield f"class {cls}", "conv", partial(_module, cls=f"{NN}.{cls}", settings=settings, args=args)


def _module(file: File, cls: str, settings: list[Any], args: list[Any]) -> None:
    file.header["modules"]["evil"] = {"kind": "stock", "class": cls, "settings": ["dict", *settings], "absent": []}
    if "EmbeddingBag" in cls:
        file.tensors["evil.weight"] = torch.ones(4, 4)
    big = torch.full((4,), 10**9)
    file.tensors.update(
        evil_i=big, evil_l=torch.tensor([3]), evil_p=torch.rand(8, 1, 4).log(), evil_r2=torch.rand(4, 4)
    )
    file.tensors.update(evil_i2=torch.full((4, 4), 10**9), evil_i4=torch.full((2, 3, 8, 8), 10**9))
    file.insert("call_module", "evil", ["tuple", *args])
    read = [["get_attr", word, f"evil_{word}", ["tuple"], EMPTY, EMPTY] for word in ("i", "l", "p", "r2", "i2", "i4")]
    file.graph[1:1] = read


def _inside() -> Iterator[tuple[str, str, Any]]:
    """A region that the graph calls as a module."""
    calls: dict[str, tuple[str, list[Any]]] = {
        "power": ("operator.pow", [9, 10**9]),
        "memory": ("torch.ones", [10**11]),
        "list": ("operator.mul", [["list", 1], 10**10]),
        "alias": ("torch.ops.aten._reshape_alias.default", [["node", "x"], ["list", 10**6], ["list", 10**6]]),
        "missing": ("torch.relu", []),
    }
    for name, (target, args) in calls.items():
        for wrapped in (False, True):
            where = "in a stock module" if wrapped else "called"
            yield f"region {where}: {name}", "conv", partial(_region, target=target, args=args, wrapped=wrapped)


def _region(file: File, target: str, args: list[Any], wrapped: bool) -> None:
    path = "evil.0" if wrapped else "evil"
    if wrapped:
        row = {"kind": "stock", "class": f"{NN}.container.Sequential", "settings": EMPTY, "absent": []}
        file.header["modules"]["evil"] = row
    inner = copy.deepcopy(file.header["modules"][""])
    inner["graph"] = [
        ["placeholder", "x", "x", ["tuple"], EMPTY, copy.deepcopy(file.graph[0][5])],
        ["call_function", "bad", target, ["tuple", *args], EMPTY, EMPTY],
        ["output", "output", "output", ["tuple", ["tuple", ["node", "x"], ["node", "bad"]]], EMPTY, EMPTY],
    ]
    inner["boundary"] = None
    file.header["modules"][path] = inner
    file.insert("call_module", "evil", ["tuple", X])


def _engines() -> Iterator[tuple[str, str, Any]]:
    """Files that one engine would take and another would not."""
    for word in ("min_scale", "_", "0", "forward"):
        yield f"stands for {word}", "linear", partial(_flat, word=word)
    for name in ("float16", "float64", "bfloat16"):
        for base in ("conv", "linear", "tokens"):
            yield f"scales of {name}", base, partial(_scales, dtype=getattr(torch, name))
    for count in range(4, 8):
        yield (
            f"convolution of {count} arguments",
            "conv",
            partial(_settings, change=lambda args, n=count: args[: n + 1]),
        )
    for place in (4, 5, 6):
        for value in (1, ["tuple", 1], ["tuple", 1, 1, 1], ["list", 1]):
            yield f"convolution with {value} at {place}", "conv", partial(_settings, change=partial(_put, place, value))
    for axis in (1, 2, -1, 4, 64, 2**40, 0.0, None):
        yield f"scales along {axis}", "conv", partial(_along, axis=axis)
    for name in ("quantizers._1.scale", "quantizers._1.zero_point", "0.weight", "0.weight_scale", "0.bias"):
        for value in (0, 1000, ["float", "nan"]):
            yield f"{name} filled with {value}", "conv", partial(_filled, name=name, value=value)
    for value in (0, 6, ["torch", "int8"], ["torch", "bool"]):
        yield f"dequantized to {value}", "linear", partial(_dequantized, value=value)


def _along(file: File, axis: Any) -> None:
    file.row("dequantize_per_channel")[3][4] = axis


def _filled(file: File, name: str, value: Any) -> None:
    rows(file, ("w", f"@{name}", []), ("v", ".view", [["node", "w"], -1]), ("m", ".fill_", [["node", "v"], value]))


def _flat(file: File, word: str) -> None:
    file.header["modules"][""]["flat"] = word


def _put(place: int, value: Any, args: list[Any]) -> list[Any]:
    return [*args[:place], value, *args[place + 1 :]]


def _scales(file: File, dtype: torch.dtype) -> None:
    for name in [name for name in file.tensors if name.endswith("weight_scale")]:
        file.tensors[name] = file.tensors[name].to(dtype)


def _settings(file: File, change: Any) -> None:
    for row in file.graph:
        if row[2] == "torch.conv2d":
            row[3] = change(row[3])


def _dequantized(file: File, value: Any) -> None:
    for row in file.graph:
        if "dequantize_per_channel_group" in str(row[2]):
            row[3] = [*row[3][:8], value]
