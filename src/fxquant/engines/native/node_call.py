"""One of Python's nodes, ready to be called: what does not depend on the values is found out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.fx.node import Argument

from fxquant.engines.native.results import Env
from fxquant.engines.onednn.unsigned import nan_of, without_nan
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region

NodeCall = Callable[[Env], Any]


def node_call(region: Region, node: fx.Node) -> NodeCall:
    """Return a function from the values of nodes to what a node returns."""
    if node.op == "get_attr":
        path = str(node.target)
        return lambda env: get_attr(region, path)
    names = tuple(node.kwargs)
    flat = [(isinstance(each, fx.Node), each) for each in (*node.args, *node.kwargs.values())]
    within = any(not is_node and _holds_node(each) for is_node, each in flat)
    call, count, nan = _callee(region, node), len(node.args), nan_of(node)

    def run(env: Env) -> object:
        if within:
            given = [fx.node.map_arg(each, env.__getitem__) for _, each in flat]
        else:
            given = [env[each] if is_node else each for is_node, each in flat]  # type: ignore[index]
        args = without_nan(node, tuple(given[:count])) if nan else given[:count]
        return call(*args, **dict(zip(names, given[count:], strict=True))) if names else call(*args)

    return run


def _callee(region: Region, node: fx.Node) -> Callable[..., object]:
    if node.op == "call_method":
        name = str(node.target)
        return lambda own, *args, **kwargs: getattr(own, name)(*args, **kwargs)
    if node.op == "call_module":
        path = str(node.target)
        return lambda *args, **kwargs: region.get_submodule(path)(*args, **kwargs)  # it may be another by then
    assert callable(node.target)
    return node.target


def _holds_node(value: Argument) -> bool:
    found: list[fx.Node] = []
    fx.node.map_arg(value, lambda node: found.append(node))
    return bool(found)
