"""Calls of a converted region that cannot go well: floats where it takes integers, a file that is not what it seems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fxquant.errors import FirstCallError, FxQuantError, InputError
from fxquant.graph.paths import find_module

if TYPE_CHECKING:
    from fxquant.graph.boundary import Boundary
    from fxquant.graph.lowering import Lowering


def first_call(region: nn.Module, lowering: Lowering, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call a region while nothing shows yet that what its file says can run. An error is the file's, or the inputs'."""
    source, lowering.source = lowering.source, ""
    try:
        return region(*args, **kwargs)
    except Exception as error:
        lowering.source = source
        if isinstance(error, FirstCallError):
            raise
        given = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in args if isinstance(x, torch.Tensor))
        text = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
        raise FirstCallError(
            f"the first call of the model from {source!r}, on ({given}), failed. {text} If the inputs are like "
            "the ones that it was quantized with, the file is not one that fxquant.save wrote."
        ) from error


def refuse_floats(
    region: nn.Module,
    boundary: Boundary,
    names: tuple[str, ...],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """Raise where a region takes integers and is given floats: read as such, they would give a wrong answer."""
    for index, grid in boundary.inputs.items():
        name = names[index] if index < len(names) else ""
        value = args[index] if index < len(args) else kwargs.get(name)
        wanted = getattr(find_module(region, grid) if isinstance(grid, str) else grid, "dtype", None)
        if isinstance(value, torch.Tensor) and wanted is not None and value.dtype != wanted:
            raise InputError(
                f"input {index} is {value.dtype}, but the model takes {wanted} there. "
                f"fxquant.boundary_qparams(model).input({index}).quantize(x) makes it."
            )
