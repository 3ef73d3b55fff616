"""Inputs for a converted model that nobody gave an example for."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx, nn

from fxquant.capture.guards import check_fixed, pack, unpack
from fxquant.core.compat import decomposed
from fxquant.core.graph import Region
from fxquant.core.nodes import TensorInfo
from fxquant.errors import ConfigError


def example_of(model: nn.Module) -> dict[str, Any]:
    """Arguments like the example inputs that a model was captured with, by the names of forward's parameters.

    Floats are drawn from the range that the input was quantized for, if it was; other tensors are zeros, which are
    valid indices of anything.
    """
    if not isinstance(model, Region):
        raise ConfigError("the model is not one graph, so its example inputs are not known. Give them.")
    nodes = (node for node in model.graph.nodes if node.op == "placeholder")
    random = torch.Generator().manual_seed(0)
    made = {str(node.target): _argument(node, random) for node in nodes}
    return {name: value for name, value in made.items() if value is not None}


def _argument(placeholder: fx.Node, random: torch.Generator) -> Any:
    drawn = _drawn(placeholder.meta.get("tensor"), _range_of(placeholder), random)
    for user in placeholder.users:
        if user.target is check_fixed:
            return user.args[2]
        if user.target is unpack and isinstance(drawn, tuple):
            return pack(list(drawn), str(user.args[2]))
    return drawn


def _drawn(info: Any, limits: tuple[float, float], random: torch.Generator) -> Any:
    if isinstance(info, tuple):
        return tuple(_drawn(item, limits, random) for item in info)
    if not isinstance(info, TensorInfo):
        return None
    x = torch.zeros(info.shape, dtype=info.dtype)
    return x.uniform_(*limits, generator=random) if x.is_floating_point() else x


def _range_of(placeholder: fx.Node) -> tuple[float, float]:
    """What an input's grid spans, or else from -1 to 1."""
    for user in placeholder.users:
        if user.target is decomposed.quantize_per_tensor.default:
            scale, zero, low, high = cast("tuple[float, int, int, int]", user.args[1:5])
            return (low - zero) * scale, (high - zero) * scale
    return -1.0, 1.0
