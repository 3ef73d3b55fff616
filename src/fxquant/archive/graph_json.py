"""A graph as JSON, and back, without running anything from the file.

Functions are stored by name and found again only among those of language.py and fxquant's own. A name outside of
these is refused when saving and when loading. fx writes Python source from the names in a graph, so names that are not
plain words are refused, too; arguments are plain values and nodes, never callables.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import fx
from torch.utils._pytree import tree_leaves

from fxquant.archive.check_header import reads_as_itself
from fxquant.archive.language import ATTRIBUTES, aten_op, function_name, functions, methods
from fxquant.archive.same_call import same_call
from fxquant.archive.sized_words import sized_word
from fxquant.archive.value_json import from_json, to_json
from fxquant.archive.whole_division import whole_word
from fxquant.archive.written_memory import written_word
from fxquant.errors import ArchiveError
from fxquant.graph.encode import META_KEYS, Ref, decode_graph, encode_graph
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Decision, Note

_OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGUMENT = re.compile(r"\*{0,2}[^\W\d]\w*")  # x, *args, **kwargs
_PATH = re.compile(r"[\w\- /+:@]+(\.[\w\- /+:@]+)*")  # fx writes getattr(self, "0") for a step that is no identifier
_REFUSED = frozenset(("out", "key", "default", "generator", "names", "pin_memory"))  # arguments that no graph may give
_DEVICES = ("to", "device")  # where a text names a device
_BUILTINS = (abs, bool, dict, float, getattr, int, len, list, max, min, round, sum, tuple)

_READ = frozenset(("self", "torch", "getattr"))  # by the source that fx makes, where an argument would hide them


def find_function(name: str, extra: dict[str, Callable[..., object]]) -> Callable[..., object]:
    """Return the function with a stored name; an ArchiveError if it is not one that a graph may call."""
    found: Callable[..., Any] | None = None
    if isinstance(name, str):
        found = extra.get(name) or functions().get(name)
        if found is None and name.startswith("torch.ops."):
            found = aten_op(name)
    if found is None:
        raise ArchiveError(
            f"the graph calls {str(name)[:80]!r}, which is neither a function that computes on tensors nor one that "
            "fxquant.wrap was called on."
        )
    return found


def graph_to_json(graph: fx.Graph, extra: dict[str, Callable[..., object]]) -> list[list[object]]:
    """Return the rows of a graph as JSON values."""
    rows = []
    names = {id(function): name for name, function in extra.items()}
    for node, (op, name, target, args, kwargs, meta) in zip(graph.nodes, encode_graph(graph)["rows"], strict=True):
        stored = target
        if op == "call_function":
            stored = target if isinstance(target, str) else function_name(target)
            stored = names.get(id(node.target), stored)
            if stored.startswith("torch._ops."):
                stored = str(target)
        op, stored, args = same_call(node, op, stored, args)
        stored, kwargs = written_word(op, stored, kwargs)
        form, stored, args = whole_word(op, sized_word(op, stored), args, kwargs, meta.get("tensor"))
        _check_call(form, stored, args, kwargs, extra)
        rows.append([form, name, stored, to_json(args), to_json(kwargs), to_json(meta)])
    return rows


def graph_from_json(rows: object, extra: dict[str, Callable[..., object]]) -> fx.Graph:
    """Return the inverse of `graph_to_json`. An ArchiveError names the node that does not belong in a graph."""
    if not isinstance(rows, list) or not rows:
        raise ArchiveError("the graph has no nodes.")
    decoded: list[tuple[Any, ...]] = []
    seen: set[str] = set()
    for index, row in enumerate(rows):
        try:
            decoded.append(_decode(row, extra, seen))
        except ArchiveError as error:
            shown = row[1] if isinstance(row, list) and len(row) > 1 else ""
            raise ArchiveError(f"node {index} ({str(shown)[:60]!r}): {error}") from error
        seen.add(decoded[-1][1])
    ends = [index for index, row in enumerate(decoded) if row[0] == "output"]
    if ends != [len(decoded) - 1]:
        raise ArchiveError("the graph does not end with its one output.")
    return decode_graph({"rows": decoded, "pytree": None})


def _decode(row: object, extra: dict[str, Callable[..., object]], seen: set[str]) -> tuple[object, ...]:
    if not isinstance(row, list) or len(row) != 6:
        raise ArchiveError("the graph has a row that is no node.")
    op, name, target, *stored = row
    args, kwargs, meta = (from_json(value) for value in stored)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in seen or keyword.iskeyword(name):
        raise ArchiveError(f"the graph has a node {str(name)[:60]!r}, which is no name, or there twice.")
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not isinstance(meta, dict):
        raise ArchiveError("the graph has a node whose arguments are none.")
    target, kwargs = written_word(op, target, kwargs)
    op, target, args = whole_word(op, sized_word(op, target), args, kwargs, meta.get("tensor"))
    _check_call(op, target, args, kwargs, extra)
    for ref in _refs((args, kwargs)):
        if ref.name not in seen:
            raise ArchiveError(f"the graph reads {ref.name[:60]!r} before it is there.")
    known = {key: value for key, value in meta.items() if key in META_KEYS}
    if not all(_fits_meta(key, value) for key, value in known.items()) or any(True for _ in _refs(known)):
        raise ArchiveError("the graph has notes on a node that are none.")
    function = find_function(str(target), extra) if op == "call_function" else target
    return op, name, function, args, kwargs, known


def _check_call(
    op: object,
    target: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    extra: dict[str, Callable[..., object]],
) -> None:
    """Refuse what is no call of the language, and what fx would write into source as it stands unless it is a name."""
    form = {"placeholder": _ARGUMENT, "get_attr": _PATH, "call_module": _PATH}.get(str(op))
    if op not in _OPCODES or not isinstance(target, str) or (form is not None and not form.fullmatch(target)):
        raise ArchiveError(f"the graph has a node {op} {str(target)[:60]!r}, which is no name that a graph may hold.")
    hides = op == "placeholder" and target.lstrip("*") in _READ
    if form is not None and (hides or not all(map(_is_plain_name, target.lstrip("*").split(".")))):
        raise ArchiveError(f"the graph has a node {op} {target!r}, which is no name that a graph may hold.")
    if op == "call_method" and target not in methods():
        raise ArchiveError(f"the graph calls the method {target[:60]!r}, which is not one of tensors.")
    for key in kwargs:
        if not isinstance(key, str) or not key.isidentifier() or not _is_plain_name(key):
            raise ArchiveError(f"the graph passes an argument {key!r} to {target!r}, which is no name of an argument.")
    if op in ("call_function", "call_method"):
        _check_arguments(target, find_function(target, extra) if op == "call_function" else target, args, kwargs)
    elif op in ("placeholder", "get_attr") and (kwargs or len(args) > (op == "placeholder")):
        raise ArchiveError(f"the graph has a node {op} {target!r} with arguments that it cannot have.")
    _check_plain((args, kwargs))


def _is_plain_name(name: str) -> bool:
    return not keyword.iskeyword(name) and reads_as_itself(name)


def _check_arguments(
    name: str, function: Callable[..., object] | str, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    refused = _REFUSED.intersection(kwargs)
    if refused and not all(kwargs[key] is None or kwargs[key] is False for key in refused):
        raise ArchiveError(f"the graph passes {sorted(refused)[0]!r} to {name!r}, which no graph may.")
    if function is getattr and (kwargs or len(args) != 2 or not isinstance(args[1], str) or args[1] not in ATTRIBUTES):
        raise ArchiveError(f"the graph reads the attribute {args[1:]!r}, which is not one of tensors.")
    if any(function is builtin for builtin in _BUILTINS) and kwargs and function is not dict:
        raise ArchiveError(f"the graph passes {sorted(kwargs)[0]!r} to {name!r}, which takes no such argument.")
    word = name.rpartition(".")[2]
    devices = [kwargs.get("device"), *(args if word in _DEVICES else ())]
    if any(isinstance(value, str) and value != "cpu" for value in devices):
        raise ArchiveError(f"the graph moves a tensor to a device in {name!r}. A file is for the CPU.")


def _check_plain(value: object) -> None:
    """Refuse callables and value types among arguments; nodes, containers and plain values are all they may hold."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise ArchiveError(f"the graph holds a dict with the key {str(key)[:40]!r}.")
            _check_plain(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item)
    elif isinstance(value, slice):
        _check_plain((value.start, value.stop, value.step))
    elif callable(value) or (dataclasses.is_dataclass(value) and not isinstance(value, Ref)):
        raise ArchiveError(f"the graph passes a {type(value).__name__} as an argument.")


def _refs(value: object) -> Iterator[Ref]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Ref):
            yield leaf
        elif isinstance(leaf, slice):
            yield from (part for part in (leaf.start, leaf.stop, leaf.step) if isinstance(part, Ref))


def _fits_meta(key: str, value: object) -> bool:
    if key == "scope":
        steps = [step for step in value if isinstance(step, tuple) and len(step) == 2] if type(value) is tuple else None
        return steps is not None and all(isinstance(word, str) for step in steps for word in step)
    if key == "tensor":
        return value is None or _is_info(value)
    kinds = {"where": str, "mutated": bool, "note": (Note, type(None)), "decision": (Decision, type(None))}
    return isinstance(value, kinds[key])  # type: ignore[arg-type]


def _is_info(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(item is None or _is_info(item) for item in value)
    return isinstance(value, TensorInfo)
