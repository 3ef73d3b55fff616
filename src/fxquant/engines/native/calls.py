"""The arguments of a call: which values the placeholders get, and what a program for them depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from fxquant.engines.native.shapes import order_of
from fxquant.graph.region import Region

Key: TypeAlias = tuple[Any, ...]
_PLAIN = (type(None), bool, int, float, str)


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


def key_of(inputs: Sequence[object]) -> Key | None:
    """Return what a program depends on; None if there is none for such inputs."""
    key: list[Any] = []
    batch = -1
    for value in inputs:
        if isinstance(value, Tensor):
            if type(value) not in (Tensor, torch.nn.Parameter) or not is_plain(value):
                return None
            if batch not in (-1, value.shape[0]):
                return None
            batch = value.shape[0]
            key.append((value.dtype, value.shape[1:], order_of(value)))
        elif isinstance(value, _PLAIN):
            key.append((type(value), value))
        else:
            return None
    return tuple(key) if batch > 0 else None


def is_plain(value: Tensor) -> bool:
    usual = value.is_cpu and value.layout is torch.strided and value.dim() > 0 and value.numel() > 0
    return usual and not value.is_neg() and not value.is_conj()


def wants_gradient(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def batch_of(inputs: Sequence[object]) -> int:
    return next(value.shape[0] for value in inputs if isinstance(value, Tensor))


def first_sample(inputs: Sequence[object]) -> list[object]:
    return [value[:1] if isinstance(value, Tensor) else value for value in inputs]
