"""Crafted files: headers that are not JSON, or not what a header says, and graphs out of order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from forge.files import Change, File, X, identity

PACK = "fxquant.capture.guards.pack"
IN_PLACE = "fxquant.capture.guards.apply_in_place"


def of_headers() -> Iterator[tuple[str, str, Change]]:
    """(name, base file, change)."""
    yield from _tables()
    yield from _fields()
    yield from _graphs()


def _tables() -> Iterator[tuple[str, str, Change]]:
    tables = ("modules", "aliases", "trees", "ties", "parameters", "unsaved", "channels_last", "format")
    for name in tables:
        for value in (None, 1, "x", [], {}, [1], {"x": 1}, {"": None}, {"0": "0"}, ["x"]):
            yield f"header {name} {value}", "conv", partial(_set, path=(), key=name, value=value)
        yield f"header without {name}", "conv", partial(_drop, key=name)
    texts = {
        "not json": "{",
        "nan": '{"format": NaN}',
        "list": "[]",
        "number": "1",
        "deep": "[" * 100_000 + "]" * 100_000,
        "deep dict": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "long number": "1" * 10_000,
        "twice": '{"format": "fxquant-2", "format": "fxquant-2"}',
        "empty": "",
        "surrogate": '"\\ud800"',
        "null": "null",
    }
    for name, text in texts.items():
        yield f"text {name}", "conv", partial(_text, text=text)


def _fields() -> Iterator[tuple[str, str, Change]]:
    for field in ("kind", "class", "method", "num_inputs", "input_names", "flat", "order", "boundary", "graph", "code"):
        for value in (None, -1, "evil", ["x"], {"x": 1}, 10**18, True):
            yield f"region {field} {value}", "conv", partial(_set, path=("modules", ""), key=field, value=value)
    for field in ("op", "spec", "shell", "kind"):
        for value in (None, "evil", 1, ["x"], {"class": "x"}, ["value", "Spec", ["dict", ["bits", 4]]]):
            yield f"weight {field} {value}", "conv", partial(_set, path=("modules", "0"), key=field, value=value)
    for kind, fields in (
        ("Spec", [["bits", 99]]),
        ("QParams", [["scale", 0.0]]),
        ("Tree", []),
        ("Evil", []),
        ("TensorInfo", []),
    ):
        value = ["value", kind, ["dict", *fields]]
        yield f"value {kind}", "conv", partial(_set, path=("trees",), key="", value=value)


def _graphs() -> Iterator[tuple[str, str, Change]]:
    yield "alias of itself", "conv", lambda file: file.header["aliases"].update({"0.a": "0"})
    yield "alias ring", "conv", lambda file: file.header["aliases"].update({"a": "b", "b": "a", "0.x": ""})
    yield "aliases inside each other", "conv", _ring
    yield "aliases of aliases", "conv", _doubling
    yield "deep path", "conv", lambda file: file.header["modules"].update({".".join(["a"] * 400): identity()})
    yield "tie ring", "conv", lambda file: file.header["ties"].update({"a": "b", "b": "a"})
    yield (
        "weights property",
        "conv",
        lambda file: file.header["modules"][""].update(weights=["dict", ["forward", ["tuple"]]]),
    )
    yield "node twice", "conv", lambda file: file.graph.insert(1, file.graph[1])
    yield "node before", "conv", lambda file: file.graph.reverse()
    yield "two outputs", "conv", lambda file: file.graph.append(file.graph[-1])
    yield "no output", "conv", lambda file: file.graph.pop()
    yield "huge example", "conv", lambda file: file.graph[0].__setitem__(5, _info(10**6, 10**6))
    yield "many dims", "conv", lambda file: file.graph[0].__setitem__(5, _info(*[1] * 200))
    calls = {
        "pack": (PACK, ["list"], '[1, {"type": "collections.defaultdict"}]'),
        "pack deep": (PACK, ["list"], "[" * 50_000),
        "in place": (IN_PLACE, X, "__reduce_ex__", 4),
        "in place resize": (IN_PLACE, X, "resize_", 10**9),
    }
    for name, (target, *args) in calls.items():
        yield name, "conv", partial(_call, target=target, args=args)
    yield "the module itself", "conv", lambda file: file.insert("get_attr", "_self", ["tuple"])


def _set(file: File, path: tuple[str, ...], key: str, value: Any) -> None:
    owner = file.header
    for step in path:
        owner = owner[step]
    owner[key] = value


def _drop(file: File, key: str) -> None:
    del file.header[key]


def _ring(file: File) -> None:
    for path in ("a", "b"):
        file.header["modules"][path] = identity()
    file.header["aliases"].update({"a.x": "b", "b.y": "a"})
    file.insert("call_module", "a", ["tuple", X])


def _doubling(file: File) -> None:
    """2^60 paths to one module."""
    for step in range(60):
        file.header["modules"][f"m{step}"] = identity()
    for step in range(59):
        file.header["aliases"].update({f"m{step}.x": f"m{step + 1}", f"m{step}.y": f"m{step + 1}"})


def _call(file: File, target: str, args: list[Any]) -> None:
    file.insert("call_function", target, ["tuple", *args])


def _text(file: File, text: str) -> None:
    file.text = text


def _info(*shape: int) -> Any:
    fields = ["dict", ["dtype", ["torch", "float32"]], ["shape", ["tuple", *shape]]]
    return ["dict", ["tensor", ["value", "TensorInfo", fields]]]
