"""Crafted files whose values grow: numbers, texts and containers that Python computes beside the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from forge.files import EMPTY, File, X

ROWS = 10**8  # of a tensor that Python would go through one by one


def rows(file: File, *made: tuple[str, str, Any], meta: Any = EMPTY) -> None:
    """Put calls behind the placeholder, named n0, n1, ...; a target that starts with a dot is a method.

    The value of the last is among the outputs: what nothing reads is not run.
    """
    calls: list[Any] = []
    for index, (name, target, args) in enumerate(made):
        op = "call_method" if target.startswith(".") else "get_attr" if target.startswith("@") else "call_function"
        calls.append([op, name or f"n{index}", target.lstrip(".@"), ["tuple", *args], EMPTY, meta])
    file.graph[1:1] = calls
    file.give(calls[-1][1])


def chain(file: File, first: tuple[str, Any], again: tuple[str, int], times: int = 70) -> None:
    """A value, and a function of it and itself (or of as many of it), again and again."""
    target, count = again
    made = [("n0", *first)]
    made += [(f"n{i + 1}", target, [["node", f"n{i}"]] * count) for i in range(times)]
    rows(file, *made)


def nest(file: File, target: str, leaf: Any = X) -> None:
    """A container of two of the one before, 60 times."""
    made: list[tuple[str, str, Any]] = [("n0", target, [["list", leaf, leaf]])]
    made += [(f"n{i + 1}", target, [["list", ["node", f"n{i}"], ["node", f"n{i}"]]]) for i in range(60)]
    rows(file, *made)


def growing() -> Iterator[tuple[str, str, Any]]:
    """(name, base file, change)."""
    n, t = ["node", "n"], ["node", "t"]
    for word, args in {
        "__pow__": [9, 10**9],
        "__rpow__": [10**9, 9],
        "__lshift__": [1, 10**12],
        "__rlshift__": [10**12, 1],
        "__mul__": [["list", 1], 10**10],
        "__rmul__": [["list", 1], 10**10],
        "__imul__": [["list", 1], 10**10],
        "__mod__": ["%9999999999d", 1],
        "__rmod__": [1, "%9999999999d"],
        "__add__": [10**18, 10**18],
        "split": ["x" * 90_000, "x"],
        "index": [["list", 1], 1],
        "sort": [["list", 2, 1]],
    }.items():
        yield f"method {word} of a value", "conv", _call(f".{word}", args)
    for word in ("__imul__", "__ipow__", "__ilshift__", "__iadd__"):
        args = [["list", 1], word, 10**10]
        yield f"in place {word}", "conv", _call("fxquant.capture.guards.apply_in_place", args)
    yield "text of a number", "conv", _call("operator.mod", ["%9999999999d", 1])
    yield "text of a number, in place", "conv", _call("operator.imod", ["%9999999999d", 1])
    yield "text times", "conv", _call("operator.mul", ["x" * 1000, 1024])
    for target in ("operator.mul", "operator.imul"):
        made = [("n0", target, [["list", 1], 1024])]
        made += [(f"n{i + 1}", target, [["node", f"n{i}"], 1024]) for i in range(5)]
        yield f"lists of {target}", "conv", partial(_rows, made=made)
    for target in ("operator.add", "operator.iadd", ".__add__"):
        first = ("tuple" if target[0] == "." else "list", [["list", 1, 2]])
        yield f"doubled by {target}", "conv", partial(chain, first=first, again=(target, 2))
        yield f"shapes doubled by {target}", "conv", partial(chain, first=(".size", [X]), again=(target, 2))
        text = ("operator.getitem", [["list", "abc"], 0])
        yield f"text doubled by {target}", "conv", partial(chain, first=text, again=(target, 2))
    for target in ("list", "tuple"):
        yield f"nested {target}", "conv", partial(nest, target=target)
        yield f"nested {target} of numbers", "conv", partial(nest, target=target, leaf=1)
    splice = ["slice", 0, 0, None]
    made = [("n0", "list", [["list", 1, 2]])]
    made += [(f"n{i + 1}", "operator.setitem", [["node", "n0"], splice, ["node", "n0"]]) for i in range(60)]
    yield "list spliced into itself", "conv", partial(_rows, made=made)
    made = [("n0", "list", [["list", 1, 2]]), ("n1", "operator.setitem", [["node", "n0"], 0, ["node", "n0"]])]
    made += [("n2", "operator.getitem", [["node", "n0"], 1])]
    yield "list inside itself", "conv", partial(_rows, made=made)
    for function in ("sum", "max", "min", "list", "tuple", "dict", "collections.OrderedDict", "len", "bool"):
        made = [("n0", "torch.zeros", [ROWS]), ("n1", function, [["node", "n0"]])]
        yield f"{function} of many rows", "conv", partial(_rows, made=made)
    for how in ("keys", "str", "bool", "len", "dtype", "evil"):
        made = [("n0", "torch.zeros", [ROWS]), ("n1", "fxquant.capture.guards.check_same", [["node", "n0"], how, 1])]
        yield f"check_same {how} of many rows", "conv", partial(_rows, made=made)
    made = [
        ("n0", "torch.zeros", [ROWS]),
        ("n1", "fxquant.capture.guards.check_items", [["node", "n0"], "x", ["tuple", 1]]),
    ]
    yield "check_items of many rows", "conv", partial(_rows, made=made)
    yield "tolist", "conv", partial(_rows, made=[("n0", "torch.zeros", [ROWS]), ("n1", ".tolist", [["node", "n0"]])])
    for word, args in {"unsqueeze_": [0], "t_": [], "squeeze_": [], "transpose_": [0, 1], "swapaxes_": [0, 1]}.items():
        changed = [("w", "@6.weight", []), ("m", f".{word}", [["node", "w"], *args])]
        yield f"a weight by {word}", "conv", partial(_rows, made=changed)
    yield from _by_values(n, t)


def _by_values(n: Any, t: Any) -> Iterator[tuple[str, str, Any]]:
    big = 2 * 10**9
    yield "squares of an item", "conv", partial(_squares, target="operator.mul")
    yield "squares of an item by method", "conv", partial(_squares, target=".__mul__")
    yield "power of an item", "conv", partial(_by_tensor, value=10**9, made=[("m", "operator.pow", [n, 10**9])])
    yield "power by an item", "conv", partial(_by_tensor, value=10**9, made=[("m", "operator.pow", [9, n])])
    yield "power by an item, method", "conv", partial(_by_tensor, value=10**9, made=[("m", ".__pow__", [n, n])])
    yield "shift by an item", "conv", partial(_by_tensor, value=10**12, made=[("m", ".__lshift__", [n, n])])
    yield "list by an item", "conv", partial(_by_tensor, value=big, made=[("m", "operator.mul", [["list", 1], n])])
    yield "text by an item", "conv", partial(_by_tensor, value=big, made=[("m", "operator.mul", ["ab", n])])
    for made in ("ones", "rand", "randperm", "arange"):
        target = f"torch.{made}"
        yield f"{made} of an item", "conv", partial(_by_tensor, value=big, made=[("m", target, [n])])
        yield f"{made} of a tensor", "conv", partial(_by_tensor, value=big, made=[("m", target, [t])])
        told = [("m", "operator.add", [n, 0]), ("k", target, [["node", "m"]])]
        yield f"{made} of what is said to be a tensor", "conv", partial(_by_tensor, value=big, made=told, meta=_info())
        for word in ("torch.sym_max", "torch.sym_int", "torch.sym_float"):
            args = [n, n] if word == "torch.sym_max" else [n]
            told = [("m", word, args), ("k", target, [["node", "m"]])]
            yield f"{made} of {word}", "conv", partial(_by_tensor, value=big, made=told)
    for word, args in {"expand": [["node", "row"], t], "repeat": [["node", "row"], t]}.items():
        made = [("row", "torch.ones", [1]), ("m", f".{word}", args)]
        yield f"{word} by a tensor", "conv", partial(_by_tensor, value=big, made=made)
    spread = [("m", ".tolist", [["node", "t"]])]
    doubled = [("d0", "operator.add", [["node", "m"], ["node", "m"]])]
    doubled += [(f"d{i + 1}", "operator.add", [["node", f"d{i}"]] * 2) for i in range(60)]
    yield "values doubled", "conv", partial(_values, made=[*spread, *doubled])
    nested = [("d0", "list", [["list", ["node", "m"], ["node", "m"]]])]
    nested += [(f"d{i + 1}", "list", [["list", ["node", f"d{i}"], ["node", f"d{i}"]]]) for i in range(60)]
    yield "values nested", "conv", partial(_values, made=[*spread, *nested])
    items = [("k", "torch.nonzero", [X]), ("s", ".size", [["node", "k"], 0])]
    items += [("d0", "operator.mul", [["node", "s"], ["node", "s"]])]
    items += [(f"d{i + 1}", "operator.mul", [["node", f"d{i}"]] * 2) for i in range(60)]
    yield "squares of a number of rows", "conv", partial(_rows, made=items)


def _call(target: str, args: list[Any]) -> Any:
    return partial(_rows, made=[("evil", target, args)])


def _rows(file: File, made: list[tuple[str, str, Any]]) -> None:
    rows(file, *made)


def _by_tensor(file: File, value: int, made: list[tuple[str, str, Any]], meta: Any = EMPTY) -> None:
    file.tensors["evil"] = torch.tensor(value)
    rows(file, *made, meta=meta)
    rows(file, ("t", "@evil", []), ("n", ".item", [["node", "t"]]))


def _values(file: File, made: list[tuple[str, str, Any]]) -> None:
    file.tensors["evil"] = torch.arange(8)
    rows(file, ("t", "@evil", []), *made)


def _squares(file: File, target: str) -> None:
    made = [("d0", target, [["node", "n"], ["node", "n"]])]
    made += [(f"d{i + 1}", target, [["node", f"d{i}"], ["node", f"d{i}"]]) for i in range(60)]
    _by_tensor(file, 2**62, made)


def _info(*shape: int) -> Any:
    fields = ["dict", ["dtype", ["torch", "int64"]], ["shape", ["tuple", *shape]]]
    return ["dict", ["tensor", ["value", "TensorInfo", fields]]]
