"""Random calls of every word of the language, on tensors and values that ops trust at their peril.

Arguments go by the schema of the op, where there is one, so that many pass the checks and run.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import torch

from forge.files import File
from fxquant.archive.language import WORDS, aten_op, functions, methods

BASE = "linear"
_EMPTY: list[Any] = ["dict"]
_SMALL = (0, 1, 2, 3, 4, -1, -2)
_LARGE = (7, 8, 9, 64, 10**6, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**62))
_FLOATS = (0.0, 0.5, 1.0, 2.0, -1.0, 1e-320, 1e-9, 1e9, 1e30, ["float", "inf"], ["float", "-inf"], ["float", "nan"])
_TEXTS = (
    *("mean", "sum", "none", "constant", "reflect", "replicate", "circular", "nearest", "bilinear", "bicubic", "same"),
    *("zeros", "border", "valid", "ij,jk->ik", "...i,i...", "floor", "trunc", "tanh", "left", "linear", "amax", "prod"),
    *("sum_", "", "x" * 200, "cpu", "fro", "nuc", "ortho", "add", "ij", "xy", "complete", "U", "lower", "midpoint"),
)
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "complex64")
_NAMED = {"ScalarType": _DTYPES, "Layout": ("strided",), "MemoryFormat": ("contiguous_format", "channels_last")}


@functools.cache
def tensors() -> dict[str, torch.Tensor]:
    """What calls are made on: few of each shape, and numbers that are no index, or no number."""
    made = torch.Generator().manual_seed(0)
    shapes = ((), (1,), (4,), (8,), (0,), (4, 4), (3, 4), (0, 4), (2, 3, 4), (2, 4, 8), (2, 3, 8, 8), (1, 2, 4, 4, 4))
    found = {f"f{index}": torch.randn(shape, generator=made) for index, shape in enumerate(shapes)}
    for index, shape in enumerate(((), (4,), (8,), (4, 4), (2, 3, 4), (2, 3, 8, 8))):
        found[f"i{index}"] = torch.randint(0, 3, shape, generator=made)
        found[f"big{index}"] = torch.full(shape, 10**9)
        found[f"minus{index}"] = torch.full(shape, -(2**40))
        found[f"bool{index}"] = torch.rand(shape, generator=made) < 0.5
        found[f"nan{index}"] = torch.full(shape, float("nan"))
        found[f"double{index}"] = torch.randn(shape, generator=made).double()
        found[f"half{index}"] = torch.randn(shape, generator=made).half()
        found[f"int8_{index}"] = torch.randint(-128, 127, shape, generator=made).to(torch.int8)
        found[f"complex{index}"] = torch.randn(shape, generator=made).to(torch.complex64)
    return found


@functools.cache
def _targets() -> list[tuple[str, str, Any]]:
    """(opcode, target, schema) of all that a graph may call."""
    found: list[tuple[str, str, Any]] = []
    for word in sorted(WORDS | {f"{word}_" for word in WORDS}):
        packet = getattr(torch.ops.aten, word, None)
        for overload in packet.overloads() if packet is not None else ():
            name = f"torch.ops.aten.{word}.{overload}"
            op = aten_op(name)
            if op is not None:
                found.append(("call_function", name, op._schema))
    for name in sorted(functions()):
        found.append(("call_function", name, _schema(name.rpartition(".")[2])))
    for name in sorted(methods()):
        found.append(("call_method", name, _schema(name.strip("_"))))
    return found


def _schema(word: str) -> Any:
    packet = getattr(torch.ops.aten, word, None) or getattr(torch.ops.aten, f"linalg_{word}", None)
    if packet is None or not hasattr(packet, "overloads"):
        return None
    return [getattr(packet, overload)._schema for overload in packet.overloads() if "out" not in overload] or None


def random_call(file: File, rng: random.Random) -> None:
    """Put one to three calls into a file, each with a word of its own; later ones may take what earlier ones give."""
    file.tensors.update({f"evil_{name}": tensor for name, tensor in tensors().items()})
    given: dict[str, Any] = {}
    rows: list[Any] = []
    names: list[str] = []
    for index in range(rng.choice((1, 1, 2, 3))):
        op, target, schema = rng.choice(_targets())
        if isinstance(schema, list):
            schema = rng.choice(schema)
        take = functools.partial(_tensor, rng, given, names)
        args, kwargs = _arguments(schema, rng, take)
        if op == "call_method" and not (args and isinstance(args[0], list) and args[0][:1] == ["node"]):
            args = [take(), *args[1:]]
        name = f"call_{index}"
        rows.append([op, name, target, ["tuple", *args], ["dict", *kwargs], _EMPTY])
        names.append(name)
    file.graph[1:1] = [*given.values(), *rows]
    for name in names:
        file.give(name)
    used = {f"evil_{name}" for name in given}
    for name in [name for name in file.tensors if name.startswith("evil_") and name not in used]:
        del file.tensors[name]


def _tensor(rng: random.Random, given: dict[str, Any], names: list[str]) -> Any:
    """A node: a tensor of the file, the input, or what came before."""
    if names and rng.random() < 0.5:
        return ["node", rng.choice(names)]
    name = rng.choice(list(tensors()))
    given.setdefault(name, ["get_attr", f"get_{name}", f"evil_{name}", ["tuple"], _EMPTY, _EMPTY])
    return ["node", f"get_{name}"]


def _arguments(schema: Any, rng: random.Random, take: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    if schema is None:
        return [take(), *(_any(rng, take) for _ in range(rng.randrange(4)))], []
    args: list[Any] = []
    kwargs: list[Any] = []
    for argument in schema.arguments:
        needed = not argument.has_default_value()
        if not needed and rng.random() < 0.6:
            continue
        if rng.random() < 0.03:
            continue
        value = _any(rng, take) if rng.random() < 0.05 else _of_type(str(argument.real_type), rng, take)
        missing = len(args) < schema.arguments.index(argument)
        if argument.kwarg_only or missing:
            kwargs.append([argument.name, value])
        else:
            args.append(value)
    return args, kwargs


def _of_type(kind: str, rng: random.Random, take: Callable[[], Any]) -> Any:
    if kind.startswith("Optional[") and rng.random() < 0.3:
        return None
    kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional[") else kind
    if kind.startswith("List["):
        inside = kind.removeprefix("List[").removesuffix("]")
        return ["list", *(_of_type(inside, rng, take) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 4))))]
    if kind == "Tensor":
        return take()
    if kind in ("int", "SymInt"):
        return rng.choice(_SMALL) if rng.random() < 0.8 else rng.choice(_LARGE)
    if kind in ("float", "number", "Scalar"):
        return rng.choice(_FLOATS)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "str":
        return rng.choice(_TEXTS)
    if kind in _NAMED:
        return ["torch", rng.choice(_NAMED[kind])]
    return ["device", "cpu"] if kind == "Device" else _any(rng, take)


def _any(rng: random.Random, take: Callable[[], Any]) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return ["torch", rng.choice(_DTYPES)]
    if kind == 1:
        return rng.choice((None, True, False, ["list"], ["tuple"], _EMPTY, ["ellipsis"], ["slice", None, 2, None]))
    if kind == 2:
        return rng.choice(_TEXTS)
    if kind == 3:
        return ["list", *(take() for _ in range(rng.randrange(4)))]
    if kind == 4:
        return [rng.choice(("list", "tuple")), *(rng.choice(_SMALL) for _ in range(rng.randrange(5)))]
    if kind == 5:
        return rng.choice(_FLOATS)
    return take() if kind == 6 else rng.choice((*_SMALL, *_LARGE))
