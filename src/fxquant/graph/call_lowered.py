"""Answer a call of a converted region: by the runner of its engine, or node by node.

A call that cannot go well is refused: floats where the region takes integers, a file that is not what it seems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fxquant.errors import FirstCallError, FxQuantError, InputError
from fxquant.graph import torch_compat
from fxquant.graph.autocast import Dtypes, call_kind, dtypes_in_float, fit
from fxquant.graph.explain_failure import explained
from fxquant.graph.float_dtype import cast, cast_halves, own_dtype
from fxquant.graph.paths import find_module

if TYPE_CHECKING:
    from fxquant.graph.lowering import Lowering
    from fxquant.graph.region import Region
    from fxquant.graph.region_parts import RegionParts

Otherwise = Callable[[Exception, tuple[object, ...], dict[str, object]], object]


def call_lowered(
    region: Region, parts: RegionParts, otherwise: Otherwise, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Run a converted region. A call that its graph does not cover goes to `otherwise`, with the reason.

    Outside of it tensors may be of another float dtype than those that its kernels take.
    """
    lowering = parts.lowering
    assert lowering is not None
    if lowering.source:
        return _first_call(region, lowering, args, kwargs)
    try:
        return _answer(region, parts, lowering, otherwise, args, kwargs)
    except Exception as error:
        told = explained(region, error, lowering.float_dtype, args, kwargs)
        if told is None:
            raise
        raise told from error


def _answer(
    region: Region,
    parts: RegionParts,
    lowering: Lowering,
    otherwise: Otherwise,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    outside = lowering.float_dtype
    if outside is not None:
        own = own_dtype(region.graph)
        args, kwargs = cast((args, kwargs), outside, own)
        return cast(_run(region, parts, lowering, otherwise, args, kwargs), own, outside)
    return _run(region, parts, lowering, otherwise, args, kwargs)


def _run(
    region: Region,
    parts: RegionParts,
    lowering: Lowering,
    otherwise: Otherwise,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    runner = lowering.runner
    if runner is not None and not torch.compiler.is_compiling():
        found = runner.repeat(region, args, kwargs)
        if found is not NotImplemented:
            return found
    if devices := torch_compat.autocasting():  # kernels know nothing of it, so that no op is to
        own = own_dtype(region.graph)
        inside = parts.origin.path and not torch.compiler.is_compiling()
        dtypes = _expected(region, lowering, args, kwargs) if inside else None
        with torch_compat.without_autocast(devices):
            return fit(_run(region, parts, lowering, otherwise, *cast_halves((args, kwargs), own)), dtypes)
    if lowering.filled is not None:
        lowering.filled.ready(region)
        error = None if torch.compiler.is_compiling() else lowering.filled.refuses(args, kwargs)
        if error is not None:
            return otherwise(error, args, kwargs)
    _refuse_floats(region, parts, args, kwargs)
    if lowering.runner is not None and not torch.compiler.is_compiling():
        return lowering.runner(region, args, kwargs)
    return region.run_graph(args, kwargs)


def _expected(region: Region, lowering: Lowering, args: tuple[object, ...], kwargs: dict[str, object]) -> Dtypes | None:
    """Return the dtypes that code around a region expects of it under autocast."""
    kind = call_kind(args, kwargs)
    if kind not in lowering.cast_results and lowering.filled is not None:
        lowering.cast_results[kind] = dtypes_in_float(region, lowering.filled.graph(region), args, kwargs)
    return lowering.cast_results.get(kind)


def _first_call(region: Region, lowering: Lowering, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
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


def _refuse_floats(region: Region, parts: RegionParts, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Raise where a region takes integers and is given floats: read as such, they would give a wrong answer."""
    boundary, names = parts.preparation.boundary, parts.origin.input_names
    if boundary is None:
        return
    for index, grid in boundary.inputs.items():
        name = names[index] if index < len(names) else ""
        value = args[index] if index < len(args) else kwargs.get(name)
        wanted = getattr(find_module(region, grid) if isinstance(grid, str) else grid, "dtype", None)
        if isinstance(value, torch.Tensor) and wanted is not None and value.dtype != wanted:
            raise InputError(
                f"input {index} is {value.dtype}, but the model takes {wanted} there. "
                f"fxquant.boundary_qparams(model).input({index}).quantize(x) makes it."
            )
