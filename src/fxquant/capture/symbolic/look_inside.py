"""Functions that a library wraps (`torch.fx.wrap`) although they are given weights: torchvision's attention of Swin.

As one call their products would stay in float. A function is looked into if it belongs to an installed package and is
handed a matrix of the model. What users wrap themselves stays one call, and so does what does not trace.
"""

from __future__ import annotations

import os
import sysconfig
import types
from collections.abc import Callable

from torch import fx, nn
from torch.utils import _pytree as pytree

from fxquant.capture.symbolic.proxies import StateProxy
from fxquant.graph.notes import WRAPPED
from fxquant.graph.reach import is_foreign

_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = {sysconfig.get_path(name) for name in ("purelib", "platlib")}


def takes_weights(function: object, args: object, kwargs: object) -> bool:
    """Tell whether a function that is about to be recorded as one call is a library's, and is given weights."""
    if not isinstance(function, types.FunctionType) or hasattr(function, WRAPPED) or is_foreign(function.__module__):
        return False
    leaves = pytree.tree_leaves((args, kwargs))
    weights = (leaf.tensor for leaf in leaves if isinstance(leaf, StateProxy))
    return any(isinstance(w, nn.Parameter) and w.dim() >= 2 for w in weights) and _is_installed(function)


def _is_installed(function: types.FunctionType) -> bool:
    file = os.path.abspath(function.__code__.co_filename)
    return any(file.startswith(f"{path}{os.sep}") for path in _LIBRARY) or not {*file.split(os.sep)}.isdisjoint(
        _INSTALLED
    )


def look_inside(tracer: fx.Tracer, call: Callable[[], object]) -> fx.Proxy:
    """Return the function's result, recorded op by op; if that fails, the graph is as it was."""
    refused: list[Exception] = tracer.__dict__.setdefault("refused", [])
    nodes, known = list(tracer.graph.nodes), len(refused)
    try:
        result = call()
        if not isinstance(result, fx.Proxy):
            raise TypeError(f"it returns a {type(result).__name__}")
    except Exception:
        before = set(nodes)
        for node in reversed(tracer.graph.nodes):
            if node not in before:
                tracer.graph.erase_node(node)
        del refused[known:]
        raise
    return result
