"""The arguments of a call: which values the placeholders get, and what a program for them depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from fxquant.engines.native.inputs import LISTS, is_flat, leaves
from fxquant.engines.native.shapes import order_of
from fxquant.graph.region import Region

Key: TypeAlias = tuple[Any, ...]
PLAIN = (type(None), bool, int, float, str)


def bind(
    region: Region, placeholders: list[fx.Node], args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object] | None:
    """Return the values of the placeholders for a call; None if it does not fit."""
    if not kwargs and len(args) == len(placeholders) and type(region.graph._codegen) is fx.graph.CodeGen:
        return list(args)
    codegen = region.graph._codegen
    if isinstance(codegen, fx.graph._PyTreeCodeGen):
        try:
            return list(codegen.process_inputs(*args, **kwargs))
        except (TypeError, ValueError, RuntimeError):
            return None
    given = list(args)
    rest = dict(kwargs)
    if len(given) > len(placeholders):
        return None
    for node in placeholders[len(given) :]:
        name = str(node.target)
        if name in rest:
            given.append(rest.pop(name))
        elif node.args and not name.startswith("*"):
            given.append(node.args[0])
        else:
            return None
    return None if rest else given


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a call, by its place among all of them: keyword arguments come behind the others."""

    index: int


def bind_places(
    region: Region, placeholders: list[fx.Node], args: tuple[object, ...], kwargs: dict[str, object]
) -> list[object] | None:
    """Return the same as `bind`, with places for the values of the call."""
    places = [Place(index) for index in range(len(args) + len(kwargs))]
    return bind(region, placeholders, tuple(places[: len(args)]), dict(zip(kwargs, places[len(args) :], strict=True)))


def key_of(inputs: Sequence[object]) -> Key | None:
    """Return what a program depends on; None if there is none for such inputs: `unfit` says why."""
    flat = leaves(inputs)
    batch = 0
    for value in flat:
        if isinstance(value, Tensor):
            if type(value) not in (Tensor, torch.nn.Parameter) or not is_plain(value):
                return None
            if batch > 1 and value.shape[0] not in (1, batch):
                return None
            batch = max(batch, value.shape[0])
        elif not isinstance(value, PLAIN):
            return None
    if not batch:
        return None
    key = [_key(value, batch) for value in flat]
    return tuple(key) if is_flat(inputs) else (*key, ("within", *map(_structure, inputs)))


def _key(value: object, batch: int) -> Key:
    if not isinstance(value, Tensor):
        return type(value), value
    if value.shape[0] == batch:
        return value.dtype, value.shape[1:], order_of(value)
    return "same for all samples", value.dtype, value.shape, order_of(value)


def _structure(value: object) -> object:
    """Return which containers a value consists of."""
    if type(value) in LISTS:
        return (type(value).__name__, *map(_structure, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return ("dict", *((key, _structure(each)) for key, each in value.items()))
    return None


def unfit(placeholders: Sequence[fx.Node], inputs: Sequence[object]) -> str:
    """Say which argument has no place in a key, and why."""
    first: tuple[str, int] | None = None
    for node, given in zip(placeholders, inputs, strict=True):
        name = f"argument {str(node.target)!r}"
        for value in leaves([given]):
            if not isinstance(value, Tensor):
                if not isinstance(value, PLAIN):
                    return f"{name} is or holds a {type(value).__name__}"
                continue
            if type(value) not in (Tensor, torch.nn.Parameter) or not is_plain(value):
                return f"{name} is no dense tensor of the CPU with a batch in front, or is empty"
            first = (name, value.shape[0]) if first is None or first[1] == 1 else first
            if value.shape[0] not in (1, first[1]):
                return f"{name} has {value.shape[0]} in front, and {first[0]} {first[1]}"
    return "no argument is a tensor"


def is_plain(value: Tensor) -> bool:
    usual = value.is_cpu and value.layout is torch.strided and value.dim() > 0 and value.numel() > 0
    return usual and not value.is_neg() and not value.is_conj()


def wants_gradient(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
