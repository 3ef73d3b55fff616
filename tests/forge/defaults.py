"""Crafted files whose arguments have defaults that the file says nothing of elsewhere: a call leaves them out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import EMPTY, File, X

N = ["node", "n"]
_ATEN = "torch.ops.aten"
_CHECK = "fxquant.capture.guards.check_fixed"
_NUMBER = ["dict", ["tensor", ["value", "TensorInfo", ["dict", ["dtype", ["torch", "float32"]], ["shape", ["tuple"]]]]]]


def of_defaults() -> Iterator[tuple[str, str, Any]]:
    """(name, base file, change)."""
    stride = [X, ["list", 2, 2], ["list", N, 1]]
    for word, args, default, fixed in (
        ("torch.zeros", [["list", N]], 10**11, 4),
        ("torch.ones", [["list", N]], 3 * 10**9, 4),
        (f"{_ATEN}.max_pool2d_with_indices.default", stride, 0, 1),
        ("torch.unflatten", [X, 1, ["list", N, -1]], 0, 1),
        ("operator.getitem", [X, N], 2**63 - 1, 0),
        ("torch.roll", [X, N, 1], -(2**63) + 1, 1),
        ("operator.mul", [["list", 1], N], 10**10, 4),
        ("operator.mod", [N, 5], "%9999999999d", 7),
    ):
        for first in (True, False):
            change = partial(_held, word=word, args=args, default=default, fixed=fixed, first=first)
            yield f"default of {word}, checked {'first' if first else 'last'}", "conv", change
    for word, args, default in (
        ("operator.pow", [3, N], 10**8),
        ("operator.mod", [N, 5], "%9999999999d"),
        ("operator.mul", [N, 9], "x" * 90_000),
        ("torch.eye", [N], 10**5),
        ("torch.linspace", [0, 1, N], 3 * 10**9),
        ("operator.add", [["list", 1], N], ["list", 1]),
        ("operator.add", [X, N], ["complex", 1e300, 1e300]),
    ):
        yield (
            f"default of {word} in the place of a tensor",
            "conv",
            partial(_tensor, word=word, args=args, value=default),
        )
    for word, mode in (("torch.div", N), ("torch.div", "trunc"), (f"{_ATEN}.div_.Tensor_mode", N)):
        yield f"default that says how {word} rounds to {mode}", "conv", partial(_rounded, word=word, mode=mode)
    for word in ("div_", "divide_", "floor_divide_", "fmod_", "remainder_"):
        yield f"{word} in place", "conv", partial(_in_place, word=word)


def _argument(file: File, default: Any, meta: Any = EMPTY) -> None:
    file.graph.insert(1, ["placeholder", "n", "n", ["tuple", default], EMPTY, meta])
    file.header["modules"][""]["input_names"].append("n")


def _held(file: File, word: str, args: list[Any], default: Any, fixed: Any, first: bool) -> None:
    _argument(file, default)
    use = ["call_function", "used", word, ["tuple", *args], EMPTY, EMPTY]
    check = ["call_function", "checked", _CHECK, ["tuple", N, "n", fixed], EMPTY, EMPTY]
    file.graph[2:2] = [check, use] if first else [use, check]
    file.give("used")


def _tensor(file: File, word: str, args: list[Any], value: Any) -> None:
    _argument(file, value, _NUMBER)
    file.graph.insert(2, ["call_function", "used", word, ["tuple", *args], EMPTY, EMPTY])
    file.give("used")


def _ends(file: File) -> list[Any]:
    """Rows that read the lowest integers, a copy of them, and numbers that are all -1."""
    file.tensors.update(lowest=torch.full((40,), -(2**63)), ones=torch.full((40,), -1))
    read = [["get_attr", name, name, ["tuple"], EMPTY, EMPTY] for name in ("lowest", "ones")]
    return [*read, ["call_method", "copied", "clone", ["tuple", ["node", "lowest"]], EMPTY, EMPTY]]


def _rounded(file: File, word: str, mode: Any) -> None:
    how = ["dict", ["rounding_mode", mode]]
    args = ["tuple", ["node", "copied"], ["node", "ones"]]
    check = ["call_function", "checked", _CHECK, ["tuple", N, "n", "floor"], EMPTY, EMPTY]
    rows = [*_ends(file), ["call_function", "used", word, args, how, EMPTY], check]
    _argument(file, "trunc")
    file.graph[2:2] = rows
    file.give("used")


def _in_place(file: File, word: str) -> None:
    how = ["dict", ["rounding_mode", "trunc"]] if word.startswith("div") else EMPTY
    args = ["tuple", ["node", "copied"], word, ["node", "ones"]]
    call = ["call_function", "used", "fxquant.capture.guards.apply_in_place", args, how, EMPTY]
    file.graph[1:1] = [*_ends(file), call]
    file.give("used")
