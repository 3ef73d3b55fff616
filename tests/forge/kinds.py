"""Crafted files: values of a kind that an op does not look for, such as strides, formats, devices and odd dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import File
from forge.growth import rows

X, A, B, C = (["node", name] for name in ("input_1", "a", "b", "c"))
ATEN = "torch.ops.aten"
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_DEVICES = ("cuda", "cpu:99", "meta", "privateuseone", "xpu:0", "", "\0", "cpu\0cuda")
_ENDS = (2**63 - 1, -(2**63) + 1, 2**31, -(2**31))
_DTYPES = ("complex64", "complex128", "uint16", "uint32", "uint64", "bool", "float16", "bfloat16", "float64", "int8")


def of_kinds() -> Iterator[tuple[str, str, Any]]:
    """(name, base file, change)."""
    yield from _strides()
    yield from _named()
    yield from _values()
    yield from _tensors()


def _call(file: File, made: list[tuple[str, str, Any]], kwargs: Any = ("dict",)) -> None:
    rows(file, *made)
    next(row for row in file.graph if row[1] == made[-1][0])[4] = list(kwargs)


def _strides() -> Iterator[tuple[str, str, Any]]:
    """Ops that read numbers one behind the other, and a number that stands for many, or one of each thousand."""
    views = {
        "of one": [("n", ".size", [X, 1]), ("a", "torch.ones", [1]), ("b", ".expand", [A, 3])],
        "by size": [("n", ".size", [X, 1]), ("a", "torch.ones", [1]), ("b", ".expand", [A, ["node", "n"]])],
        "of steps": [("a", "torch.ones", [["list", 3, 9]]), ("b", "operator.getitem", [A, ["tuple", _ALL, 8]])],
        "of integers": [("a", "torch.ones", [1]), ("l", ".long", [A]), ("b", ".expand", [["node", "l"], 3])],
    }
    for name, view in views.items():
        weights = [
            ("w", "torch.ones", [["list", 12, 4]]),
            ("v", "torch.ones", [12]),
            ("h", "torch.ones", [["list", 1, 1, 4]]),
        ]
        w, v, h = ["node", "w"], ["node", "v"], ["node", "h"]
        norm = [X, B, B, 2, 3, 64, 1, 1e-5]
        data = [("c", "torch.ones", [["list", 3, 4]])]
        gru = [C, B, h, ["list", w, w, v, v], True, 1, 0.0, False, False]
        yield (
            f"group norm {name}",
            "conv",
            partial(_call, made=[*view, ("evil", f"{ATEN}.native_group_norm.default", norm)]),
        )
        for target in (f"{ATEN}.gru.data", "torch.gru"):
            yield f"{target} {name}", "conv", partial(_call, made=[*view, *weights, *data, ("evil", target, gru)])
        for target in ("quantized_decomposed.quantize_per_channel.default", "aten.native_batch_norm.default"):
            args = (
                [X, B, B, 1, -128, 127, ["torch", "int8"]]
                if "quantize" in target
                else [X, B, B, B, B, False, 0.1, 1e-5]
            )
            yield f"{target} {name}", "conv", partial(_call, made=[*view, ("evil", f"torch.ops.{target}", args)])
    signs = {
        "negative": [("a", "torch.fft.fft", [X]), ("b", ".conj", [A]), ("evil", "getattr", [B, "imag"])],
        "conjugate": [("a", "torch.fft.fft", [X]), ("evil", ".conj", [A])],
        "flipped": [("evil", "torch.flip", [X, ["list", 0, 1, 2, 3]])],
        "expanded": [("a", ".mean", [X, ["list", 0]]), ("evil", ".expand", [A, 2, 3, 8, 8])],
        "empty": [("evil", "operator.getitem", [X, ["tuple", _ALL, ["slice", 0, 0, None]]])],
        "no pictures": [("evil", "operator.getitem", [X, ["tuple", ["slice", 0, 0, None]]])],
    }
    for name, made in signs.items():
        yield f"input {name}", "conv", partial(_instead, made=made)
    for name in _DTYPES:
        yield f"input of {name}", "conv", partial(_instead, made=[("evil", ".to", [X, ["torch", name]])])


_ALL = ["slice", None, None, None]


def _instead(file: File, made: list[tuple[str, str, Any]]) -> None:
    """The model goes on with another tensor in the place of its input."""
    for row in file.graph[1:]:
        for place in (3, 4):
            row[place] = _with(row[place])
    rows(file, *made)


def _with(value: Any) -> Any:
    if value == X:
        return ["node", "evil"]
    return [_with(item) for item in value] if isinstance(value, list) else value


def _named() -> Iterator[tuple[str, str, Any]]:
    """Dtypes, formats, devices and generators, as values of each kind."""
    for word in ("prim_Device", "prim_dtype", "prim_other"):
        for value in (-1, 6, 64, 10**6, ["torch", "int8"]):
            args = [X, None, value] if word == "prim_Device" else [X, value]
            yield f"to.{word} {value}", "conv", partial(_call, made=[("evil", f"{ATEN}.to.{word}", args)])
    for value in (-1, 64, 2**40):
        for word in ("float", "int", "bool", "default"):
            made = [("evil", f"{ATEN}.tensor.{word}", [1])]
            yield f"tensor.{word} {value}", "conv", partial(_call, made=made, kwargs=["dict", ["dtype", value]])
    for name in _FORMATS:
        kwargs = ["dict", ["memory_format", ["torch", name]]]
        for target in (
            ".contiguous",
            ".to",
            ".clone",
            f"{ATEN}.clone.default",
            f"{ATEN}._to_copy.default",
            "torch.zeros_like",
        ):
            for source in (X, ["node", "a"]):
                made = [("a", "torch.flatten", [X]), ("evil", target, [source])]
                yield f"{target} in {name} of {source[1]}", "conv", partial(_call, made=made, kwargs=kwargs)
    for place in _DEVICES:
        made = [("evil", f"{ATEN}.to.device", [X, place, ["torch", "float32"]])]
        yield f"to.device {place!r}", "conv", partial(_call, made=made)
        kwargs = ["dict", ["device", place]]
        yield (
            f"_to_copy {place!r}",
            "conv",
            partial(_call, made=[("evil", f"{ATEN}._to_copy.default", [X])], kwargs=kwargs),
        )
        yield f"tensor on {place!r}", "conv", partial(_call, made=[("evil", "torch.tensor", [1])], kwargs=kwargs)
    for value in (X, 0, "x", True, ["list", 1]):
        made = [("evil", f"{ATEN}.rrelu.default", [X, 0.1, 0.3, True, value])]
        yield f"generator {value}", "conv", partial(_call, made=made)
    for key in ("pin_memory", "non_blocking", "copy", "requires_grad", "out", "layout"):
        for target in (f"{ATEN}.zeros.default", "torch.zeros", ".new_zeros", "torch.tensor", f"{ATEN}.to.dtype"):
            made = [("evil", target, [X, ["list", 2]] if "new" in target or "to." in target else [["list", 2]])]
            yield f"{key} of {target}", "conv", partial(_call, made=made, kwargs=["dict", [key, True]])


def _values() -> Iterator[tuple[str, str, Any]]:
    """Numbers at the ends of what 64 bits hold, where an op adds one or turns the sign."""
    calls = {
        "roll": ("torch.roll", lambda end: [X, end, 1]),
        "select": (f"{ATEN}.select.int", lambda end: [X, 1, end]),
        "dim": ("torch.sum", lambda end: [X, end]),
        "slice": (f"{ATEN}.slice.Tensor", lambda end: [X, 2, end, end, 1]),
        "step": (f"{ATEN}.slice.Tensor", lambda end: [X, 2, 0, 8, end]),
        "index": ("operator.getitem", lambda end: [X, ["tuple", ["slice", end, end, 1]]]),
        "narrow": ("torch.narrow", lambda end: [X, 0, end, end]),
        "diagonal": ("torch.diagonal", lambda end: [X, end]),
        "tril": ("torch.tril", lambda end: [X, end]),
        "pad": (f"{ATEN}.constant_pad_nd.default", lambda end: [X, ["list", end, -end]]),
        "reflect": (f"{ATEN}.reflection_pad2d.default", lambda end: [X, ["list", end, -end, 0, 0]]),
        "replicate": (f"{ATEN}.replication_pad2d.default", lambda end: [X, ["list", end, -end, 0, 0]]),
        "unfold": (f"{ATEN}.unfold.default", lambda end: [X, 2, 2, end]),
        "fft": ("torch.fft.fft", lambda end: [X, end]),
        "shift": (f"{ATEN}.bitwise_left_shift.Tensor_Scalar", lambda end: [A, end]),
        "divide": ("torch.floor_divide", lambda end: [A, -1]),
        "remainder": ("torch.remainder", lambda end: [A, 0]),
        "fmod": ("torch.fmod", lambda end: [A, -1]),
        "rot90": ("torch.rot90", lambda end: [X, end, ["list", 0, 1]]),
        "kernel": (f"{ATEN}.avg_pool2d.default", lambda end: [X, ["list", end, 1]]),
        "ceil mode": (
            f"{ATEN}.max_pool2d_with_indices.default",
            lambda end: [X, ["list", 2, 2], ["list", end, end], 0, 1, True],
        ),
        "groups": (f"{ATEN}.native_channel_shuffle.default", lambda end: [X, end]),
        "adaptive": (f"{ATEN}._adaptive_avg_pool2d.default", lambda end: [X, ["list", end, 1]]),
        "unflatten": ("torch.unflatten", lambda end: [X, 1, ["list", end, -1]]),
        "repeat": ("torch.repeat_interleave", lambda end: [X, end, 0]),
        "topk": ("torch.topk", lambda end: [X, end]),
        "chunks": ("torch.chunk", lambda end: [X, end]),
        "bins": ("torch.histc", lambda end: [X, end]),
        "hop": ("torch.stft", lambda end: [["node", "f"], 4, end]),
        "power": ("torch.linalg.matrix_power", lambda end: [["node", "s"], end]),
    }
    for name, (target, args) in calls.items():
        for end in _ENDS:
            made = [
                ("a", "torch.full", [["list", 4], end]),
                ("f", "torch.flatten", [X]),
                ("s", "torch.ones", [["list", 2, 2]]),
            ]
            yield f"{name} at {end}", "conv", partial(_call, made=[*made, ("evil", target, args(end))])


def _tensors() -> Iterator[tuple[str, str, Any]]:
    """What grids and float tensors hold."""
    for value in (float("nan"), float("inf"), -1.0, 1e-45, 3.4e38, 0.0):
        for name in ("quantizers._1.scale", "0.bias", "6.weight_scale"):
            yield f"{name} of {value}", "conv", partial(_fill, name=name, value=value, dtype=torch.float32)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.float32, torch.uint64):
        for value in (-129, 256, 2**40, 0):
            yield (
                f"zero point {value} of {dtype}",
                "conv",
                partial(_fill, name="quantizers._1.zero_point", value=value, dtype=dtype),
            )
    for value in (float("nan"), float("inf"), 1e30, -1e30):
        yield f"input times {value}", "conv", partial(_instead, made=[("evil", "operator.mul", [X, _number(value)])])


def _number(value: float) -> Any:
    return value if abs(value) < 1e300 else ["float", str(value)]


def _fill(file: File, name: str, value: float, dtype: torch.dtype) -> None:
    shape = file.tensors[name].shape
    whole = torch.full(shape, value, dtype=torch.float64)
    file.tensors[name] = whole.to(dtype) if dtype.is_floating_point else whole.long().to(dtype)
