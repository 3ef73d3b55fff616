"""The header of a file as the tables that it is made of, before anything is built from them.

Each row has the fields of its kind, each of its type; paths and names of tensors are plain steps that take the place
of nothing that modules have themselves. An ArchiveError names the row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from torch import Tensor, nn

from fxquant.archive.value_json import DTYPES, is_whole
from fxquant.errors import ArchiveError
from fxquant.files import Json

_STEP = re.compile(r"[\w\- /+:@]+")
_TAKEN = frozenset(nn.Module().__dict__)
_LONGEST = 1000
DEEPEST_PATH = 100  # modules around a module
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "region": {
        **{"class": (str,), "method": (str,), "num_inputs": (int, type(None)), "input_names": (list,), "flat": (str,)},
        **{"order": (int,), "boundary": (list, type(None)), "graph": (list,), "code": (list,)},
    },
    "weight": {"op": (str,), "spec": (list,), "shell": (dict, type(None))},
    "grid": {"quant_min": (int,), "quant_max": (int,), "dtype": (list,)},
    "stock": {"class": (str,), "settings": (list,), "absent": (list,)},
    "user": {"class": (str,)},
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "training": (bool,),
    "weights": (list,),
    "present": (list,),
    "tail": (list,),
    "axis": (int,),
    "moved": (dict,),
    "classes": (list,),
}


def check_header(header: Json, tensors: dict[str, Tensor]) -> None:
    """Raise an ArchiveError unless the header has the form that `write_archive` gives it."""
    tables = {"modules": dict, "aliases": dict, "trees": dict, "ties": dict, "parameters": dict}
    for name, kind in {**tables, "unsaved": list, "channels_last": list}.items():
        if not isinstance(header.get(name), kind):
            raise ArchiveError(f"the header has no {kind.__name__} {name!r}.")
    if "" not in header["modules"]:
        raise ArchiveError("the header has no row for the model itself.")
    for path, row in header["modules"].items():
        check_path(path)
        _check_row(path, row)
    _check_order(header["modules"])
    for path, first in header["aliases"].items():
        check_path(path)
        if not path or not isinstance(first, str) or not first:
            raise ArchiveError(f"the header has an alias {path!r} of {first!r}.")
        if f"{path}.".startswith(f"{first}.") or f"{first}.".startswith(f"{path}."):
            raise ArchiveError(f"the module {path!r} would be inside of itself, at {first!r}.")
    for path in header["trees"]:
        check_path(path)
    _check_tensors(header, tensors)


def check_path(path: str) -> None:
    """Raise an ArchiveError unless a path is made of names that modules may have."""
    steps = path.split(".") if path else ()
    if len(steps) > DEEPEST_PATH:
        raise ArchiveError(f"the header has a path of {len(steps)} steps, {path[:80]!r}.")
    for step in steps:
        fits = _STEP.fullmatch(step) and reads_as_itself(step) and step not in _TAKEN and not step.startswith("__")
        if not fits or len(path) > _LONGEST:
            raise ArchiveError(f"the header has a path {path[:80]!r}, in which {step[:40]!r} is no name of a module.")


def reads_as_itself(name: str) -> bool:
    """Tell whether Python's source reads a name as it is written.

    Of letters that look alike, it takes the plain one.
    """
    return unicodedata.normalize("NFKC", name) == name


def _check_row(path: str, row: object) -> None:
    where = f"the row {path!r}"
    if not isinstance(row, dict) or row.get("kind") not in _FIELDS:
        kind = row.get("kind") if isinstance(row, dict) else row
        raise ArchiveError(f"the file has a module of the unknown kind {str(kind)[:40]!r} at {path!r}.")
    _check_fields(where, row, _FIELDS[row["kind"]])
    if row["kind"] == "weight" and row["shell"] is not None:
        shell = row["shell"]
        _check_fields(f"{where}, shell", shell, {**_FIELDS["stock"], "kind": (str,), "present": (list,)})
        _check_words(where, shell["absent"], shell["present"])
        if "weights" in row:
            raise ArchiveError(f"{where} has weights of its own.")
    if not all(is_whole(size, 1, 2**31) for size in row.get("tail", ())):
        raise ArchiveError(f"{where} has a weight of the shape {row['tail'][:8]}.")
    if row["kind"] == "stock":
        _check_words(where, row["absent"])
    if row["kind"] == "region":
        _check_words(where, row["input_names"], row["code"], [row["flat"]] if row["flat"] else [])
        if not is_whole(row["order"], 0, 10**6) or (
            row["num_inputs"] is not None and not is_whole(row["num_inputs"], 0)
        ):
            raise ArchiveError(f"{where} has a number out of range.")
        _check_moved(where, row.get("moved", {}), row.get("classes", []))


def _check_moved(where: str, moved: Json, classes: list[object]) -> None:
    """Raise unless these are paths of parameters, each with where it is now and a flag, and paths of modules."""
    _check_words(where, list(moved), classes)
    for place in moved.values():
        if not isinstance(place, list) or [type(part) for part in place] != [str, bool]:
            raise ArchiveError(f"{where} says of a parameter {str(place)[:80]}, which is no place.")
    for path in (*moved, *(place[0] for place in moved.values()), *map(str, classes)):
        check_path(path)


def _check_fields(where: str, row: Json, fields: dict[str, tuple[type, ...]]) -> None:
    for name, kinds in fields.items():
        if name not in row or type(row[name]) not in kinds:
            raise ArchiveError(f"{where} has no {name!r} of type {kinds[0].__name__}; it makes no model.")
    for name, kinds in _OPTIONAL.items():
        if name in row and type(row[name]) not in kinds:
            raise ArchiveError(f"{where} has a {name!r} of another type than {kinds[0].__name__}.")


def _check_words(where: str, *lists: list[object]) -> None:
    for words in lists:
        if not all(isinstance(word, str) and 0 < len(word) <= _LONGEST for word in words):
            raise ArchiveError(f"{where} has a list of names that are none.")


def _check_order(paths: Iterable[str]) -> None:
    """Parents come first, so that a child is put into the module that stays."""
    above: set[str] = set()
    for path in paths:
        if path in above:
            raise ArchiveError(f"the row {path!r} comes after rows of modules inside it.")
        steps = path.split(".")
        above.update(".".join(steps[:count]) for count in range(1, len(steps)))
        if path:
            above.add("")


def _check_tensors(header: Json, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        check_path(name)
        if not name or tensor.dtype not in DTYPES:
            raise ArchiveError(f"the tensor {name[:80]!r} is {tensor.dtype}, which no model of ours holds.")
    for name, source in header["ties"].items():
        check_path(name)
        if not isinstance(source, str) or source not in tensors or name in tensors or not name:
            raise ArchiveError(f"the tensor {name[:80]!r} is said to be {str(source)[:80]!r}, which is not there.")
    known = tensors.keys() | header["ties"].keys()
    for name, flag in header["parameters"].items():
        if name not in known or not isinstance(flag, bool):
            raise ArchiveError(f"the parameter {name[:80]!r} is not there.")
        source = tensors[header["ties"].get(name, name)]
        if flag and not (source.is_floating_point() or source.is_complex()):
            raise ArchiveError(f"the parameter {name[:80]!r} is {source.dtype}, which cannot be trained.")
    for list_name in ("unsaved", "channels_last"):
        for name in header[list_name]:
            if not isinstance(name, str) or name not in known:
                raise ArchiveError(f"the tensor {str(name)[:80]!r} in {list_name!r} is not there.")
            if list_name == "channels_last" and (name not in tensors or tensors[name].dim() not in (4, 5)):
                raise ArchiveError(f"the tensor {name[:80]!r} has no channels that could be last.")
