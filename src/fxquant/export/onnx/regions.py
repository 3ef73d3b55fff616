"""A model of several graphs as a directory: an ONNX file for each, and a manifest of how they are called.

    {"format": "fxquant-onnx-regions", "version": 1, "regions": [{"path", "file", "inputs", "outputs"}]}

inputs, outputs   {"name", "dtype", "shape"}; a size is a number, or the name of an open one
file              null for a region that the example did not call

The manifest says which files belong together. It is written last, and no file that the one before names is written
over, so whenever an export ends there is one whole set: files of the old one go when the new manifest is there. What a
process that was killed had written is listed in a file of its own, by which the next export removes it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
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
_WRITING = ".manifest.writing"  # the names of files that an export writes and removes
_LONGEST = 200  # letters; names of files have 255


def export_regions(model: nn.Module, folder: Path, example: Call, write: Callable[..., ir.Model]) -> Path:
    """Write each region with the first call that it gets in the example; `write(region, file, args, kwargs)` does."""
    calls = _calls(model, example)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        old = _named_in(folder)
        _remove(folder, _left_behind(folder) - old)
        names = _choose_names(os.listdir(folder), [path for path, _ in regions(model) if path in calls])
    except OSError as error:
        raise ConfigError(f"export_onnx cannot write to {str(folder)!r}: {error.strerror}. Give another.") from error
    with replacing(folder / _WRITING, ConfigError) as part:
        part.write_text("".join(f"{name}\n" for name in {*old, *names.values()}))
    try:
        rows = [_row(path, names.get(path), calls.get(path), region, folder, write) for path, region in regions(model)]
        text = json.dumps({"format": FORMAT, "version": VERSION, "regions": rows}, indent=1)
        with replacing(folder / MANIFEST, ConfigError) as part:
            part.write_text(text + "\n")
        _remove(folder, old)
    except BaseException:
        _remove(folder, set(names.values()) - _named_in(folder))
        raise
    finally:
        (folder / _WRITING).unlink(missing_ok=True)
    return folder


def _row(
    path: str, name: str | None, call: Call | None, region: Region, folder: Path, write: Callable[..., ir.Model]
) -> Json:
    row: Json = {"path": path, "file": name, "inputs": [], "outputs": []}
    if name is not None and call is not None:
        made = write(region, folder / name, *call)
        ends = {"inputs": made.graph.inputs, "outputs": made.graph.outputs}
        row |= {side: [_shown(value) for value in values] for side, values in ends.items()}
    return row


def _named_in(folder: Path) -> set[str]:
    """Return the files that the manifest of a directory names, none if there is no manifest of ours."""
    try:
        found = json.loads((folder / MANIFEST).read_text())
        names = {row["file"] for row in found["regions"]} if found["format"] == FORMAT else set()
    except (OSError, ValueError, LookupError, TypeError):
        return set()
    return {name for name in names if _is_own_name(name)}


def _left_behind(folder: Path) -> set[str]:
    """Return the files that an export was about to write, or to remove, when its process was killed."""
    try:
        lines = (folder / _WRITING).read_text().splitlines()
    except (OSError, ValueError):
        return set()
    return set(filter(_is_own_name, lines))


def _is_own_name(name: object) -> bool:
    """Tell whether this is a name such as `_file_name` gives: no way out of the directory."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]+\.onnx", name) is not None


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Remove models, with the tensors that large ones have in files of their own."""
    for name in names:
        for file in (folder / name, folder / f"{name}.data", *folder.glob(f"{name}.????????.data")):
            with contextlib.suppress(OSError):  # nothing reads it
                file.unlink(missing_ok=True)


def _choose_names(taken: Sequence[str], paths: Iterable[str]) -> dict[str, str]:
    """Return a name for the file of each region that is not taken."""
    names: dict[str, str] = {}
    for path in paths:
        names[path] = _file_name(path, [*taken, *names.values()])
    return names


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
