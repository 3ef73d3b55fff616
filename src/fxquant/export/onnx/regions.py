"""A model of several graphs as a directory: an ONNX file for each, and a manifest of how they are called.

    {"format": "fxquant-onnx-regions", "version": 1, "regions": [{"path", "file", "inputs", "outputs"}]}

inputs, outputs   {"name", "dtype", "shape"}; a size is a number, or the name of an open one
file              null for a region that the example did not call
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fxquant.errors import ConfigError
from fxquant.export.open_sizes import Call
from fxquant.files import Json, replacing
from fxquant.graph.region import Region, regions

if TYPE_CHECKING:
    import onnx_ir as ir


FORMAT, VERSION = "fxquant-onnx-regions", 1
MANIFEST = "manifest.json"
_LONGEST = 200  # letters; names of files have 255


def export_regions(model: nn.Module, folder: Path, example: Call, write: Callable[..., ir.Model]) -> Path:
    """Write each region with the first call that it gets in the example; `write(region, file, args, kwargs)` does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"export_onnx cannot make {str(folder)!r}: {error.strerror}. Give another.") from error
    calls = _calls(model, example)
    rows: list[Json] = []
    for path, region in regions(model):
        row: Json = {"path": path, "file": None, "inputs": [], "outputs": []}
        if path in calls:
            name = _file_name(path, {row["file"] for row in rows})
            made = write(region, folder / name, *calls[path])
            ends = {"inputs": made.graph.inputs, "outputs": made.graph.outputs}
            row |= {"file": name, **{side: [_shown(value) for value in values] for side, values in ends.items()}}
        rows.append(row)
    text = json.dumps({"format": FORMAT, "version": VERSION, "regions": rows}, indent=1)
    with replacing(folder / MANIFEST, ConfigError) as part:
        part.write_text(text + "\n")
    return folder


def _file_name(path: str, taken: Collection[str]) -> str:
    """Return a name of plain letters for a region that no other one has, whatever its path is written in."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", path)[:_LONGEST] or "model"
    tries = itertools.chain([f"{stem}.onnx"], (f"{stem}_{count}.onnx" for count in itertools.count(2)))
    lower = {name.lower() for name in taken if name}  # some disks know no capitals
    return next(name for name in tries if name.lower() not in lower)


def _calls(model: nn.Module, example: Call) -> dict[str, Call]:
    """Return the first call of each region, by its path."""
    found: dict[str, Call] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            found.setdefault(path, (args, kwargs))

        return hook

    handles = [region.register_forward_pre_hook(keep(path), with_kwargs=True) for path, region in regions(model)]
    try:
        with torch.no_grad():
            model(*example[0], **example[1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def _shown(value: ir.Value) -> Json:
    shape = [size if isinstance(size, int) else str(size) for size in value.shape or ()]
    return {"name": value.name, "dtype": str(value.dtype), "shape": shape}


def is_whole(model: nn.Module) -> bool:
    """Tell whether a model is one graph."""
    return isinstance(model, Region)
