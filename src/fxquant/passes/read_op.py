"""What a call was given, whatever its spelling: the tensor of a unary op, and its settings."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region


def module_of(region: Region, node: fx.Node) -> nn.Module | None:
    """Return the module that a node calls, if it does."""
    return region.get_submodule(str(node.target)) if node.op == "call_module" else None


def operand_of(node: fx.Node) -> fx.Node:
    """Return the tensor that a unary op takes."""
    found = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))
    assert isinstance(found, fx.Node)
    return found


def setting(node: fx.Node, module: nn.Module | None, place: int, name: str, default: object = None) -> Any:
    """Return what an op was given under a name: by its module, at a place among the arguments, or by keyword."""
    if module is not None:
        return getattr(module, name, default)
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def mean_axes(node: fx.Node) -> tuple[int, ...]:
    """Return the axes over which a mean goes, in order; none where they, or the rank, are not known."""
    before, axes = tensor_info(operand_of(node)), setting(node, None, 1, "dim")
    axes = (axes,) if isinstance(axes, int) else axes
    if before is None or not isinstance(axes, (tuple, list)) or not all(isinstance(axis, int) for axis in axes):
        return ()
    return tuple(sorted(axis % len(before.shape) for axis in axes))
