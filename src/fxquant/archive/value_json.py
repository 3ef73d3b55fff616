"""Plain values as JSON, and back: numbers, strings, containers, dtypes, and the value types of this package.

A value is plain JSON or a tagged list (`["tuple", ...]`). Reading checks everything: whole numbers fit 64 bits, floats
that are not finite are spelled out, dtypes are those of plain tensors, the only device is the CPU, and the fields of
value types have the types that they are declared with.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, TypeGuard, get_args

import torch

from fxquant.archive.language import ACTIVATIONS, function_name
from fxquant.config.spec import Spec
from fxquant.errors import ArchiveError, ConfigError
from fxquant.graph.boundary import Boundary
from fxquant.graph.encode import Ref
from fxquant.graph.grid import QParams
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Decision, Note, Status
from fxquant.graph.tree import Left, Tree

MOST_INT = 2**63 - 1
MOST_TEXT = 100_000
DEEPEST = 64
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_TORCH = {str(value).removeprefix("torch."): value for value in (*DTYPES, *_FORMATS, torch.strided)}


def read_json(text: str) -> object:
    """Return the JSON value of a text; an ArchiveError if it is none, has a key twice, or a number that is none."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ArchiveError("the header has a key twice.")
        return found

    def whole(digits: str) -> int:
        if len(digits) > 20 or abs(int(digits)) > MOST_INT:
            raise ArchiveError(f"the header has a number of {len(digits)} digits.")
        return int(digits)

    def refuse(word: str) -> object:
        raise ArchiveError(f"the header has {word}, which is no number of JSON.")

    try:
        return json.loads(text, object_pairs_hook=once, parse_int=whole, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"the header is not JSON, or nested too deep: {error}") from error


def to_json(value: object) -> object:
    """Return a plain value as JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, complex):
        return ["complex", to_json(value.real), to_json(value.imag)]
    if isinstance(value, list):
        return ["list", *map(to_json, value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ["tuple", *map(to_json, value)]
    if isinstance(value, dict):
        return ["dict", *([to_json(k), to_json(v)] for k, v in value.items())]
    if isinstance(value, slice):
        return ["slice", *map(to_json, (value.start, value.stop, value.step))]
    if isinstance(value, Ref):
        return ["node", value.name]
    if any(value is known for known in _TORCH.values()):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if value is Ellipsis:
        return ["ellipsis"]
    if callable(value) and any(value is function for function in ACTIVATIONS):
        return ["function", function_name(value)]  # a layer's activation
    if type(value) in _CHECKS and dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return ["value", type(value).__name__, to_json(fields)]
    raise ArchiveError(f"the graph holds a {type(value).__name__}, which cannot be stored.")


def from_json(value: object, depth: int = 0) -> Any:
    """Return the inverse of `to_json`; an ArchiveError for anything that it does not write."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float, str)):
        return _scalar(value)
    if depth > DEEPEST or not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ArchiveError(f"the file holds {str(value)[:40]!r}, which is no value, or is nested too deep.")
    tag, *rest = value
    read = _READERS.get(tag)
    if read is None:
        raise ArchiveError(f"the file holds a value of the unknown kind {tag[:40]!r}.")
    try:
        return read(rest, depth + 1)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"the file holds a {tag} that is none: {error}") from error


def _scalar(value: float | str) -> object:
    if isinstance(value, str) and len(value) > MOST_TEXT:
        raise ArchiveError(f"the file holds a text of {len(value)} characters.")
    if isinstance(value, int) and abs(value) > MOST_INT:
        raise ArchiveError("the file holds a whole number that does not fit 64 bits.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArchiveError(f"the file holds a {value}, which is to be spelled out.")
    return value


def _items(rest: list[object], depth: int) -> list[object]:
    return [from_json(item, depth) for item in rest]


def _dict(rest: list[list[object]], depth: int) -> dict[object, object]:
    pairs = [(from_json(key, depth), from_json(value, depth)) for key, value in rest]
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ArchiveError("the file holds a dict with a key twice.")
    return found


def _slice(rest: list[object], depth: int) -> slice:
    start, stop, step = _items(rest, depth)
    return slice(start, stop, step)


def _one(rest: list[object]) -> str:
    (word,) = rest
    if not isinstance(word, str):
        raise TypeError(f"{str(word)[:40]!r} is no word")
    return word


def _float(rest: list[object], depth: int) -> float:
    return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[_one(rest)]


def _complex(rest: list[object], depth: int) -> complex:
    real, imag = _items(rest, depth)
    if not isinstance(real, float) or not isinstance(imag, float):
        raise TypeError("its parts are no floats")
    return complex(real, imag)


def _device(rest: list[object], depth: int) -> torch.device:
    if _one(rest) != "cpu":
        raise ValueError(f"{rest[0]!r} is not the CPU")
    return torch.device("cpu")


def _function(rest: list[object], depth: int) -> Callable[..., object]:
    return {function_name(function): function for function in ACTIVATIONS}[_one(rest)]


def _ellipsis(rest: list[object], depth: int) -> object:
    return Ellipsis


def _value(rest: list[object], depth: int) -> object:
    name, fields = rest
    cls = {known.__name__: known for known in _CHECKS}[name]
    given = from_json(fields, depth)
    try:
        made = cls(**given)
    except ConfigError as error:
        raise ArchiveError(f"the file holds a {name} that cannot be: {error}") from error
    if not _CHECKS[cls](made):
        raise ArchiveError(f"the file holds a {name} with a field of a wrong type or range.")
    return made


_READERS: dict[str, Callable[[list[Any], int], Any]] = {
    "float": _float,
    "complex": _complex,
    "list": _items,
    "tuple": lambda rest, depth: tuple(_items(rest, depth)),
    "dict": _dict,
    "slice": _slice,
    "node": lambda rest, depth: Ref(_one(rest)),
    "torch": lambda rest, depth: _TORCH[_one(rest)],
    "device": _device,
    "ellipsis": _ellipsis,
    "function": _function,
    "value": _value,
}


def is_whole(value: object, low: int = -MOST_INT, high: int = MOST_INT) -> TypeGuard[int]:
    """Tell whether a value is a whole number in a range; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_scale(value: object) -> bool:
    """Tell whether a value can be the scale of a grid."""
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _words(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_spec(spec: Spec) -> bool:
    flags = all(isinstance(value, bool) for value in (spec.signed, spec.symmetric, spec.dynamic))
    sizes = is_whole(spec.axis, 0, 64) and (spec.group_size is None or is_whole(spec.group_size, 1))
    limits = spec.range is None or (
        isinstance(spec.range, tuple) and len(spec.range) == 2 and all(isinstance(x, (int, float)) for x in spec.range)
    )
    whole = spec.limits is None or (isinstance(spec.limits, tuple) and len(spec.limits) == 2)
    whole = whole and all(is_whole(end) for end in spec.limits or ())
    smallest = isinstance(spec.min_scale, (int, float)) and spec.factory is None
    return flags and sizes and limits and whole and smallest and is_whole(spec.bits, 2, 16)


def _is_qparams(grid: QParams) -> bool:
    if grid.dtype not in DTYPES or grid.dtype.is_floating_point or grid.dtype.is_complex or grid.dtype is torch.bool:
        return False
    info = torch.iinfo(grid.dtype)
    low, high, zero = grid.quant_min, grid.quant_max, grid.zero_point
    ends = is_whole(low, info.min, info.max) and is_whole(high, info.min, info.max) and low < high
    plain = grid.axis is None and grid.rounding == "half_even"
    return ends and plain and is_whole(zero, low, high) and is_scale(grid.scale)


def _is_boundary(boundary: Boundary) -> bool:
    tables = (boundary.inputs, boundary.outputs)
    return all(
        isinstance(table, dict)
        and all(is_whole(key, 0, 10_000) and isinstance(grid, (QParams, str)) for key, grid in table.items())
        for table in tables
    )


def _is_info(info: TensorInfo) -> bool:
    shape = isinstance(info.shape, tuple) and len(info.shape) <= DEEPEST
    return shape and info.dtype in DTYPES and all(is_whole(size, 0, 2**48) for size in info.shape)


def _is_note(note: Note) -> bool:
    ids = isinstance(note.inputs, tuple) and all(x is None or isinstance(x, str) for x in (*note.inputs, note.output))
    specs = isinstance(note.weight, (Spec, type(None))) and (
        note.bias in (None, "int32") or isinstance(note.bias, Spec)
    )
    flags = isinstance(note.observe_output, bool) and isinstance(note.half, bool)
    return ids and specs and (note.group is None or _words(note.group)) and flags


def _is_decision(decision: Decision) -> bool:
    known = decision.status in get_args(Status)
    return known and _words(decision.kind, decision.reason, decision.rule)


def _is_tree(tree: Tree) -> bool:
    names = isinstance(tree.input_names, tuple) and _words(tree.method, *tree.input_names)
    left = isinstance(tree.left, tuple) and all(isinstance(item, Left) for item in tree.left)
    return names and left and tree.concrete == () and (tree.num_inputs is None or is_whole(tree.num_inputs, 0, 10_000))


def _is_left(left: Left) -> bool:
    texts = [getattr(left, field.name) for field in dataclasses.fields(left)]
    return all(text is None or isinstance(text, (str, int, bool)) for text in texts)


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    Spec: _is_spec,
    Note: _is_note,
    Decision: _is_decision,
    TensorInfo: _is_info,
    Boundary: _is_boundary,
    QParams: _is_qparams,
    Tree: _is_tree,
    Left: _is_left,
}
