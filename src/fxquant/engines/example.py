"""Inputs for a converted model that nobody gave an example for."""

from __future__ import annotations

import math
import operator
from typing import Any, cast

import torch
from torch import fx, nn

from fxquant.capture.guards import pack, take_item, unpack
from fxquant.errors import ConfigError
from fxquant.graph.nodes import NOT_HELD, TensorInfo, held_value
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region, origin_of
from fxquant.graph.torch_compat import decomposed

_UNKNOWN = object()
_DRAWN = (torch.bool, torch.uint8, torch.int8)


def example_of(model: nn.Module) -> dict[str, object]:
    """Arguments like the example inputs that a model was captured with, by the names of forward's parameters.

    Floats are drawn from the range that the input was quantized for, if it was. Quantized integers and booleans are
    drawn, too; other integers are zeros, which are valid indices of anything.
    """
    if not isinstance(model, Region):
        raise ConfigError("the model is not one graph, so its example inputs are not known. Give them.")
    random = torch.Generator().manual_seed(0)
    made: dict[str, Any] = {}
    for node in model.graph.nodes:
        if node.op == "placeholder":
            value = _argument(node, random, model)
            if value is not _UNKNOWN:
                made[str(node.target)] = value
            elif not node.args:  # it has no default
                container = any(user.target in (take_item, unpack) for user in node.users)
                what = "holds what is no tensor" if container else "is not known: the example inputs did not show it"
                raise ConfigError(f"argument {str(node.target)!r} {what}. Give example inputs, or use engine='onednn'.")
    return made


def _argument(placeholder: fx.Node, random: torch.Generator, model: Region) -> object:
    info = placeholder.meta.get("tensor")
    if origin_of(model).method == "leaf" and isinstance(info, TensorInfo) and not info.shape:
        return _UNKNOWN  # see capture/piecewise/stock_region.py: it was never called
    drawn = _drawn(info, _range_of(placeholder, model), random)
    taken: dict[Any, Any] = {
        user.args[1]: _argument(user, random, model) for user in placeholder.users if user.target is take_item
    }
    if taken and _UNKNOWN not in taken.values():  # of a dict or a list, what the graph reads
        return [taken[key] for key in sorted(taken)] if all(isinstance(key, int) for key in taken) else taken
    held = held_value(placeholder)
    if held is not NOT_HELD:
        return held
    for user in placeholder.users:
        if user.target is unpack:
            leaves = _leaves(user, random, model)
            return _UNKNOWN if any(leaf is _UNKNOWN for leaf in leaves) else pack(leaves, str(user.args[2]))
    return drawn


def _leaves(unpacked: fx.Node, random: torch.Generator, model: Region) -> list[object]:
    """Return the tensors in a container argument, each drawn as the graph reads it."""
    shown = unpacked.meta.get("tensor")
    if not isinstance(shown, tuple):
        return [_UNKNOWN]
    read = {user.args[1]: user for user in unpacked.users if user.target is operator.getitem}
    return [_drawn(info, _range_of(read.get(place, unpacked), model), random) for place, info in enumerate(shown)]


def _drawn(info: object, limits: tuple[float, float], random: torch.Generator) -> object:
    if isinstance(info, tuple):
        return tuple(_drawn(item, limits, random) for item in info)
    if not isinstance(info, TensorInfo):
        return _UNKNOWN
    x = torch.zeros(info.shape, dtype=info.dtype, device="cpu")
    if x.is_floating_point():
        return x.uniform_(*limits, generator=random)
    return x.random_(generator=random) if info.dtype in _DRAWN else x


def _range_of(placeholder: fx.Node, model: Region) -> tuple[float, float]:
    """Return what an input's grid spans, or else from -1 to 1."""
    for user in placeholder.users:
        if user.target is decomposed.quantize_per_tensor.default:
            scale, zero = (_number(model, value) for value in user.args[1:3])
            low, high = cast("tuple[int, int]", user.args[3:5])
            if math.isfinite(scale) and scale > 0:  # it may have none, or wait for its state_dict
                return (low - zero) * scale, (high - zero) * scale
    return -1.0, 1.0


def _number(model: Region, value: object) -> float:
    """Return a number of a grid, or what the graph reads it from."""
    return float(get_attr(model, str(value.target)) if isinstance(value, fx.Node) else cast("float", value))
