"""A region inside a model under torch.autocast: it computes as without, and returns what the code around expects.

That code may ask for a dtype, or write a result into a tensor of its own. So results have the dtype that they have in
the float module: found once for each kind of call, by a run of its QDQ graph that rounds nothing, on tensors without
values. The numbers are those of a call without autocast, in that precision.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, Target
from torch.utils import _pytree as pytree

from fxquant.graph import torch_compat
from fxquant.graph.interpret import PlainInterpreter, interpret

if TYPE_CHECKING:
    from fxquant.graph.region import Region

Dtypes = tuple[torch.dtype | None, ...]


class _Unrounded(PlainInterpreter):
    """Runs a QDQ graph in floats; of modules, without their hooks."""

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        rounds = target in torch_compat.QUANTIZE_OPS
        if rounds or (target in torch_compat.DEQUANTIZE_OPS and _is_float(args[0])):
            return args[0]
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        return self.module.get_submodule(str(target)).forward(*args, **kwargs)


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def call_kind(args: object, kwargs: object) -> Hashable:
    """Return what the dtypes of results depend on: how autocast casts, and the dtypes of a call."""
    casts = tuple((device, torch.get_autocast_dtype(device)) for device in torch_compat.autocasting())
    return casts, _dtypes((args, kwargs))


def dtypes_in_float(region: Region, graph: fx.Graph, args: object, kwargs: object) -> Dtypes | None:
    """Return the dtypes of what a QDQ graph returns if nothing in it is rounded; None where that cannot be told."""
    mode, without_values = torch_compat.fake_tensors()
    given, named = pytree.tree_map_only(Tensor, without_values, (args, kwargs))
    try:
        with mode, torch.no_grad():
            return _dtypes(interpret(_Unrounded(region, graph=graph), given, named))
    except Exception:  # an op that needs values, or code of the user's own: results stay as they are
        return None


def fit(values: object, dtypes: Dtypes | None) -> object:
    """Return values with their float tensors in these dtypes."""
    leaves, structure = pytree.tree_flatten(values)
    if dtypes is None or len(dtypes) != len(leaves):
        return values
    pairs = zip(leaves, dtypes, strict=True)
    return pytree.tree_unflatten([_cast(leaf, dtype) for leaf, dtype in pairs], structure)


def _cast(leaf: object, dtype: torch.dtype | None) -> object:
    floats = isinstance(leaf, Tensor) and leaf.is_floating_point() and dtype is not None and dtype.is_floating_point
    return leaf.to(dtype) if floats and isinstance(leaf, Tensor) else leaf


def _dtypes(values: object) -> Dtypes:
    return tuple(leaf.dtype if isinstance(leaf, Tensor) else None for leaf in pytree.tree_leaves(values))
