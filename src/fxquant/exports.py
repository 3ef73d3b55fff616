"""The calls that write files, from any stage: a prepared, frozen or trained model is converted first, on a copy.

`FORMATS` is the one list of formats: `fxquant export` reads names, suffixes and options from it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from torch import nn

from fxquant.errors import ConfigError, FxQuantError
from fxquant.export.encodings import export_json as _export_json
from fxquant.export.executorch.export import export_executorch as _export_executorch
from fxquant.export.onnx.export import export_onnx as _export_onnx
from fxquant.export.pt2 import export_pt2 as _export_pt2
from fxquant.graph.check_model import refuse_other
from fxquant.graph.hooks import warn_of_lost_hooks
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.integers.dump import dump_integers as _dump_integers
from fxquant.integers.reference import integer_reference as _integer_reference
from fxquant.quantize_fx import convert_to_reference_fx

_Call = TypeVar("_Call", bound=Callable[..., Any])


def converted(model: nn.Module) -> nn.Module:
    """Return the model itself where it is converted, or is none of ours; else its conversion to the reference."""
    stages = {stage_of(region) for _, region in regions(model)} if isinstance(model, nn.Module) else set()
    return convert_to_reference_fx(model) if Stage.PREPARED in stages else model


def _of_any_stage(call: _Call, *, also: tuple[type, ...] = ()) -> _Call:
    """Let a call take a model of any stage, or one of the other types that it knows."""

    @functools.wraps(call)
    def convert_and_call(model: nn.Module, *args: object, **kwargs: object) -> object:
        if not isinstance(model, also):
            refuse_other(model, call.__name__)
        _refuse_other_format(args[0] if args else kwargs.get("path"), call.__name__)
        found = converted(model)
        if isinstance(found, nn.Module):
            warn_of_lost_hooks(found, call.__name__)
        return call(found, *args, **kwargs)

    return cast("_Call", convert_and_call)


dump_integers = _of_any_stage(_dump_integers)
export_executorch = _of_any_stage(_export_executorch)
export_json = _of_any_stage(_export_json)
export_onnx = _of_any_stage(_export_onnx)
export_pt2 = _of_any_stage(_export_pt2)
integer_reference = _of_any_stage(_integer_reference, also=(str, os.PathLike))  # of a dump

# by name, with the end of a file's name where that tells the format; options are those of the call
FORMATS: Mapping[str, tuple[str, Callable[..., object]]] = MappingProxyType(
    {
        "onnx": (".onnx", export_onnx),
        "pt2": (".pt2", export_pt2),
        "executorch": (".pte", export_executorch),
        "json": (".json", export_json),
        "integers": ("", dump_integers),
    }
)


def _format_of(path: object) -> tuple[str, str]:
    """Return how a file's name ends, and the call that writes such files; "" where no export does."""
    end = Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
    return end, next((call.__name__ for suffix, call in FORMATS.values() if end and suffix == end), "")


def _refuse_other_format(path: object, name: str) -> None:
    """Raise for a name that says another format than the call writes: what reads it would not know it."""
    end, writer = _format_of(path)
    writer = "save" if end == ".fq" else writer
    if writer not in ("", name):
        own = next((suffix for suffix, call in FORMATS.values() if call.__name__ == name), "")
        wanted = f"a name that ends in {own}" if own else "the name of a directory"
        raise ConfigError(f"{name} got {str(path)!r}, and fxquant.{writer} writes {end}. Give {wanted}.")


def refuse_exported(path: str | os.PathLike[str], error: type[FxQuantError]) -> None:
    """Raise for a saved model under a name that says another format: no other program could read it."""
    end, writer = _format_of(path)
    if writer:
        raise error(
            f"{str(path)!r} says a format that other programs read, and a saved model is fxquant's own. Give a name "
            f"that ends in .fq; fxquant.{writer}, or `fxquant export`, writes {end}."
        )
