"""One self-contained file for a converted model: safetensors, with the graphs as JSON in its header.

The tensors are those of the QDQ form (int8 weights; tied tensors once). The header holds each region's graph as rows,
and the modules around and inside as far as they are needed (tree_rows.py). Reading it runs nothing from the file:
functions and classes are found by name among those that compute on tensors (graph_json.py, module_rows.py), and a
digest over everything tells an altered file.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fxquant.archive.check_header import check_header
from fxquant.archive.rebuild import needs_no_float_model, rebuild
from fxquant.archive.safetensors_file import write_safetensors
from fxquant.archive.tree_rows import Rows, header_of, stored_tensors
from fxquant.archive.value_json import read_json
from fxquant.errors import ArchiveError
from fxquant.files import Json, replacing

FORMAT = "fxquant-2"


def write_archive(model: nn.Module, path: Path) -> None:
    """Write the QDQ form of a converted model."""
    header, rows = header_of(model)
    tensors, facts = _tensors(model, rows)
    text = json.dumps({"format": FORMAT, **header, **facts}, separators=(",", ":"))
    with replacing(path, ArchiveError) as part, part.open("wb") as file:
        write_safetensors(file, tensors, {"digest": _digest(text, tensors), "fxquant": text})
        file.flush()
        if needs_no_float_model(rows.rows):
            _prove(text, tensors, path)


def read_archive(path: Path, float_model: nn.Module | None) -> nn.Module:
    """Read a file written by `write_archive`; the regions are in QDQ form."""
    header, tensors = _read(path)
    return _built(header, tensors, float_model, path)


def _prove(text: str, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise an ArchiveError that names the node if a file would not be loaded."""
    try:
        _built(cast(Json, read_json(text)), dict(tensors), None, path)
    except ArchiveError as error:
        raise ArchiveError(f"the model cannot be saved, as no file of it could be loaded. {error}") from error


def _built(header: Json, tensors: dict[str, Tensor], float_model: nn.Module | None, path: Path) -> nn.Module:
    try:
        check_header(header, tensors)
        for name in header["channels_last"]:
            tensors[name] = tensors[name].contiguous(memory_format=_last(tensors[name]))
        tensors.update({name: tensors[source] for name, source in header["ties"].items()})
        return rebuild(header, tensors, float_model, path)
    except ArchiveError as error:
        raise ArchiveError(f"{str(path)!r}: {error}") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError) as error:
        raise ArchiveError(f"{str(path)!r} has a header that makes no model: {error!r}") from error
    except (RecursionError, RuntimeError, SyntaxError, TypeError, ValueError) as error:
        raise ArchiveError(f"{str(path)!r} has a header that makes no model: {error!r}") from error


def _read(path: Path) -> tuple[Json, dict[str, Tensor]]:
    if os.path.exists(path) and not os.path.isfile(
        path
    ):  # to open a pipe, or to look for the end of a device, may not end
        raise ArchiveError(f"{str(path)!r} is no plain file; it may be a directory, a pipe or a device.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118, not a dict
    except FileNotFoundError as error:
        raise ArchiveError(f"there is no file {str(path)!r}.") from error
    except (OSError, SafetensorError) as error:
        if zipfile.is_zipfile(path):
            raise ArchiveError(
                f"{str(path)!r} is a zip file, such as torch.save and torch.jit.save write: load it with torch. "
                "fxquant.load reads what fxquant.save wrote."
            ) from error
        raise ArchiveError(f"{str(path)!r} is not a saved model, or it was cut short: {error}") from error
    except (MemoryError, RuntimeError, ValueError) as error:
        raise ArchiveError(
            f"{str(path)!r} cannot be read: {error}. Its tensors are larger than the memory, or than they should be."
        ) from error
    if "fxquant" not in metadata:
        raise ArchiveError(f"{str(path)!r} is a safetensors file, but not one that fxquant.save wrote.")
    if metadata.get("digest") != _digest(metadata["fxquant"], tensors):
        raise ArchiveError(f"{str(path)!r} was altered after it was saved. Take a fresh copy.")
    header = read_json(metadata["fxquant"])
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise ArchiveError(f"{str(path)!r} has the format {str(found)[:40]!r}; this version reads {FORMAT!r}.")
    return header, tensors


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(model: nn.Module, rows: Rows) -> tuple[dict[str, Tensor], Json]:
    """Return the tensors to store, and what is to be known of them: ties, parameters, memory format."""
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    parameters: dict[str, bool] = {}
    channels_last: list[str] = []
    unsaved: list[str] = []
    seen: dict[tuple[Any, ...], str] = {}
    for name, value, kind in stored_tensors(model, rows):
        if kind == "parameter":
            parameters[name] = value.requires_grad
        elif kind == "unsaved":
            unsaved.append(name)
        place = (value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride()))
        if value.numel() and place in seen:
            ties[name] = seen[place]
            continue
        seen[place] = name
        if value.dim() in (4, 5) and not value.is_contiguous() and value.is_contiguous(memory_format=_last(value)):
            channels_last.append(name)  # a float op left in that format adds up in another order
        tensors[name] = value.detach().cpu().contiguous().clone()
    facts = {
        **{"ties": dict(sorted(ties.items())), "parameters": parameters},
        **{"unsaved": sorted(unsaved), "channels_last": sorted(channels_last)},
    }
    return tensors, facts


def _last(tensor: Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
