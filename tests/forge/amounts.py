"""Crafted files: numbers that are too large or make no sense, and tensors that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from forge.files import EMPTY, Change, File, X, hide_tensor
from forge.words import BIG

QUANTIZE = "quantize_per_tensor"


def of_numbers() -> Iterator[tuple[str, str, Change]]:
    """(name, base file, change)."""
    yield from _numbers()
    yield from _tensors()


def _numbers() -> Iterator[tuple[str, str, Change]]:
    def call(op: str, target: str, *args: Any) -> Change:
        return lambda file: file.insert(op, target, ["tuple", *args])

    for size in BIG:
        for made in ("zeros", "ones", "rand", "empty", "arange", "randperm", "eye"):
            yield f"{made} {size}", "conv", call("call_function", f"torch.{made}", size)
        yield f"repeat {size}", "conv", call("call_method", "repeat", X, size, 1, 1, 1)
        yield f"expand {size}", "conv", call("call_method", "expand", X, size, 2, 3, 8, 8)
        yield f"pad {size}", "conv", call("call_function", "torch.nn.functional.pad", X, ["list", 0, size])
        yield f"interpolate {size}", "conv", call("call_function", "torch.nn.functional.interpolate", X, size)
        yield f"tensor_split {size}", "conv", call("call_function", "torch.tensor_split", X, size)
        yield f"histc {size}", "conv", call("call_function", "torch.histc", X, size)
        yield f"list times {size}", "conv", call("call_function", "operator.mul", ["list", 1], size)
        yield f"aten full {size}", "conv", call("call_function", "torch.ops.aten.full.default", ["list", size, size], 1)
        yield f"power {size}", "conv", call("call_function", "operator.pow", 9, size)
    yield "squares", "conv", _squares
    yield "deep value", "conv", lambda file: file.insert("call_function", "torch.relu", _nested(300))
    yield "one_hot by data", "tokens", lambda file: _after(file, "torch.nn.functional.one_hot")
    yield "repeat_interleave by data", "tokens", lambda file: _after(file, "torch.repeat_interleave", twice=True)
    for scale in (0.0, -1.0, ["float", "nan"], ["float", "inf"], 1e-320, "x", None, 10**30, X, 1):
        yield f"scale {scale}", "conv", partial(_argument, text=QUANTIZE, at=1, value=scale)
    for zero in (-129, 128, 300, 10**10, 0.5, "x", None, ["float", "nan"]):
        yield f"zero point {zero}", "conv", partial(_argument, text=QUANTIZE, at=2, value=zero)
    for at, value in (
        (3, 10**9),
        (4, -(10**9)),
        (3, "x"),
        (5, ["torch", "float32"]),
        (5, ["torch", "qint8"]),
        (5, "int8"),
    ):
        yield (
            f"grid {at} {value}",
            "conv",
            partial(_argument, text=QUANTIZE, at=at, value=value),
        )  # type: ignore[misc]
    for at, name in ((3, "stride"), (4, "padding"), (5, "dilation"), (6, "groups")):
        for value in (0, -1, 2**40, ["tuple", 0, 0], ["tuple", -3, 1], 1.5, "x", None, ["tuple", *[1] * 70], 7):
            yield f"{name} {value}", "conv", partial(_argument, text="conv2d", at=at, value=value)
    for text in ("9**9**9 > 0", "s[0][0] == __import__('os')", "1 and " * 2000 + "1", "(" * 900, "-" * 3000 + "1"):
        yield f"condition {text[:20]}", "sizes", partial(_condition, condition=text)
    trees: tuple[Any, ...] = (
        *(["tuple", "eval", "1"], ["tuple", "**", 9, 9], ["tuple", "size", 0, -1], ["tuple", "==", 1, 2**70], 5, "x"),
        *(_nested(200), ["tuple", "size", 10**9, 0], ["tuple", "/", 1, 0], ["tuple", "%", 1, 0], ["tuple", "max"]),
    )
    for tree in trees:
        yield f"condition tree {str(tree)[:30]}", "sizes", partial(_condition, condition=tree)


def _squares(file: File) -> None:
    """1 for a batch of one, beyond all memory for two."""
    rows = [["call_method", "n0", "size", ["tuple", X, 0], EMPTY, EMPTY]]
    rows += [
        ["call_function", f"n{i + 1}", "operator.mul", ["tuple", ["node", f"n{i}"], ["node", f"n{i}"]], EMPTY, EMPTY]
        for i in range(80)
    ]
    file.graph[1:1] = rows
    file.give("n80")


def _nested(depth: int) -> Any:
    made: Any = ["tuple", 1]
    for _ in range(depth):
        made = ["tuple", made]
    return made


def _after(file: File, function: str, twice: bool = False) -> None:
    name = file.graph[0][1]
    node = ["node", name]
    row = ["call_function", "evil", function, ["tuple", node, *([node] * twice)], EMPTY, EMPTY]
    file.graph.insert(1, row)
    file.give("evil")


def _argument(file: File, text: str, at: int, value: Any) -> None:
    file.row(text)[3][at + 1] = value


def _condition(file: File, condition: Any) -> None:
    file.row("check_sizes")[3][3] = ["tuple", condition]


def _tensors() -> Iterator[tuple[str, str, Change]]:
    def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
        return lambda file: file.tensors.update({name: change(file.tensors[name])})

    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "flat": lambda t: t.reshape(-1),
        "scalar": lambda t: t.reshape(-1)[0],
        "empty": lambda t: t[:0],
        "one row less": lambda t: t[:-1],
        "one row more": lambda t: torch.cat([t, t[:1]]),
        "more dims": lambda t: t[None],
        "float": lambda t: t.double(),
        "int64": lambda t: t.long(),
        "bool": lambda t: t != 0,
        "complex": lambda t: t.to(torch.complex64),
        "zeros": torch.zeros_like,
        "turned": lambda t: t.transpose(0, -1) if t.dim() else t,
        "int8 ends": lambda t: torch.full_like(t, 127),
        "negative": lambda t: -t.abs() - 1,
    }
    places = [("conv", "0.weight"), ("conv", "0.weight_scale"), ("conv", "0.bias"), ("conv", "6.weight")]
    places += [("linear", "0.weight"), ("linear", "0.weight_scale"), ("tokens", "embed.weight"), ("tokens", "q.bias")]
    for base, name in places:
        for change, function in changes.items():
            yield f"{base} {name} {change}", base, put(name, function)
    for value in (float("nan"), float("inf"), -1.0, 0.0):
        yield f"scale tensor {value}", "conv", put("0.weight_scale", partial(torch.full_like, fill_value=value))
    for name in ("__class__", "_parameters", "forward", "a..b", ".", "", "x" * 5000, "0.__dict__", "training"):
        yield f"tensor name {name[:20]!r}", "conv", partial(hide_tensor, word=name)
