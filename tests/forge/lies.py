"""Crafted files that record other sizes of a value than it has. Sizes may depend on values, and be known at a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import EMPTY, File, X

_GUARDS = "fxquant.capture.guards"
_ATEN = "torch.ops.aten"
_MANY = 10**7
_ALL = ["get_attr", "all", "all", ["tuple"], EMPTY, EMPTY]
_ONE = ["get_attr", "one", "one", ["tuple"], EMPTY, EMPTY]
_LEAF = {"type": None, "context": None, "children_spec": []}
_LIST = json.dumps([1, {"type": "builtins.list", "context": "null", "children_spec": [_LEAF]}])


def of_lies() -> Iterator[tuple[str, str, Any]]:
    """(name, base file, change)."""
    one, mask = ["node", "one"], ["node", "all"]
    for how, op, target, args in (
        ("item of a list", "call_function", f"{_GUARDS}.take_item", [["list", one], 0, "x"]),
        ("item of a dict", "call_function", f"{_GUARDS}.take_item", [["dict", ["a", one]], "a", "x"]),
        ("masked_select", "call_function", "torch.masked_select", [one, mask]),
        ("masked_select method", "call_method", "masked_select", [one, mask]),
        ("item by a mask", "call_function", "operator.getitem", [one, mask]),
        ("unique_consecutive", "call_function", "torch.unique_consecutive", [one]),
    ):
        rows = [[op, "lie", target, ["tuple", *args], EMPTY, _said(_MANY)]]
        for word, use in (*_norms(["node", "lie"]), ("resize", _resized(["node", "lie"]))):
            yield f"{word} of what is recorded of {how}", "conv", partial(_put, rows=rows, use=use)
    unpacked = ["call_function", "leaves", f"{_GUARDS}.unpack", ["tuple", ["list", one], "x", _LIST], EMPTY, EMPTY]
    leaf = ["call_function", "lie", "operator.getitem", ["tuple", ["node", "leaves"], 0], EMPTY, _said(_MANY)]
    for word, use in _norms(["node", "lie"]):
        yield f"{word} of what is recorded of a leaf", "conv", partial(_put, rows=[unpacked, leaf], use=use)
    for word in ("check_fixed", "check_items", "check_key", "check_given", "check_same"):
        yield f"{word} by a node", "conv", partial(_fixed_by_node, word=word)


def _said(*shape: int) -> Any:
    fields = ["dict", ["dtype", ["torch", "float32"]], ["shape", ["tuple", *shape]]]
    return ["dict", ["tensor", ["value", "TensorInfo", fields]]]


def _norms(numbers: Any) -> Iterator[tuple[str, list[Any]]]:
    """Rows that read a number for each of many channels."""
    wide = ["call_function", "wide", "torch.ones", ["tuple", ["list", 1, _MANY]], EMPTY, EMPTY]
    for word, args in (
        (f"{_ATEN}.native_batch_norm.default", [None, None, numbers, numbers, False, 0.1, 1e-5]),
        (f"{_ATEN}._native_batch_norm_legit_no_training.default", [numbers, numbers, numbers, numbers, 0.1, 1e-5]),
        ("torch.native_batch_norm", [numbers, numbers, None, None, True, 0.1, 1e-5]),
    ):
        call = ["call_function", "normed", word, ["tuple", ["node", "wide"], *args], EMPTY, EMPTY]
        used = ["call_function", "used", "operator.getitem", ["tuple", ["node", "normed"], 0], EMPTY, EMPTY]
        yield word, [wide, call, used]


def _resized(numbers: Any) -> list[Any]:
    """Rows that read pixels that are not there."""
    picture = ["call_method", "picture", "reshape", ["tuple", numbers, 1, 1, -1, 1], EMPTY, _said(1, 1, _MANY, 1)]
    args = ["tuple", ["node", "picture"], ["list", _MANY, 1], False, 1.0, 1.0]
    return [picture, ["call_function", "used", f"{_ATEN}._upsample_bilinear2d_aa.default", args, EMPTY, EMPTY]]


def _put(file: File, rows: list[Any], use: list[Any]) -> None:
    file.tensors.update(one=torch.ones(1), all=torch.ones(1, dtype=torch.bool))
    file.graph[1:1] = [_ONE, _ALL, *rows, *use]
    file.give("used")


def _fixed_by_node(file: File, word: str) -> None:
    """What the run without data takes for the argument would be a node, which equals no number."""
    file.header["modules"][""]["input_names"].append("n")
    n = ["node", "n"]
    rest = {"check_key": ["n", n, True], "check_given": [n]}.get(word, ["n", ["node", "one"]])
    file.graph[1:1] = [
        ["placeholder", "n", "n", ["tuple", 1], EMPTY, EMPTY],
        ["call_method", "size", "size", ["tuple", X, 0], EMPTY, EMPTY],
        ["call_function", "one", "operator.floordiv", ["tuple", ["node", "size"], 2], EMPTY, EMPTY],
        ["call_function", "checked", f"{_GUARDS}.{word}", ["tuple", n, *rest], EMPTY, EMPTY],
        ["call_function", "same", "operator.eq", ["tuple", n, 1], EMPTY, EMPTY],
        ["call_function", "count", "operator.mul", ["tuple", ["node", "same"], 5 * 10**8], EMPTY, EMPTY],
        ["call_function", "used", "torch.ones", ["tuple", ["list", ["node", "count"]]], EMPTY, EMPTY],
    ]
    file.give("used")
