"""Whether all that a region's graph calls is known to do no more than its ops show."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx.node import _get_qualified_name
from torch.utils import _pytree as pytree

from fxquant.engines.made_from import called_modules
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region

# packages whose functions do what their ops show
_KNOWN = ("torch", "torchvision", "_operator", "builtins", "math", "fxquant")


def unknown_code(region: Region) -> str:
    """Tell why the graph may do more than its ops show: it calls code that is not known. "" if it does not."""
    for module in called_modules(region):
        if type(module).__module__.partition(".")[0] not in _KNOWN:
            return f"a module of the model is called: {type(module).__name__}"
        for node in module.graph.nodes if isinstance(module, Region) else ():
            if node.op == "call_function" and not _is_known(node.target):
                return f"{node.name} calls a function of the model"
            if node.op == "get_attr" and not isinstance(get_attr(module, str(node.target)), Tensor):
                return f"{node.name} reads an attribute"
    return ""


def _is_known(function: Callable[..., object]) -> bool:
    if isinstance(function, torch._ops.OpOverload):
        return True  # one op, whoever wrote it
    if isinstance(function, type) and function in pytree.SUPPORTED_NODES:
        return True  # a container
    module = getattr(function, "__module__", None) or _get_qualified_name(function)
    return str(module).partition(".")[0] in _KNOWN
