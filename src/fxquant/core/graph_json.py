"""A graph as JSON, and back, without running anything from the file.

Values are plain JSON or tagged lists (`["tuple", ...]`). Functions are stored by name and found again only among those
that compute on tensors: the op table, ATen and quantized ops, what torch lets tensor subclasses override, arithmetic of
`operator` and `math`, and fxquant's own. A name outside of these is refused when saving and when loading. fx writes
Python source from the names in a graph, so names that are not plain words are refused too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import _get_qualified_name

from fxquant.core.boundary import Boundary, QParams
from fxquant.core.encode import META_KEYS, Ref, decode_graph, encode_graph
from fxquant.core.language import ACTIVATIONS
from fxquant.core.nodes import TensorInfo
from fxquant.core.ops import OPS
from fxquant.core.plan import Decision, Note
from fxquant.core.spec import Spec
from fxquant.core.tree import Left, Tree
from fxquant.errors import ArchiveError

_VALUES: dict[str, type] = {
    cls.__name__: cls for cls in (Spec, Note, Decision, TensorInfo, Boundary, QParams, Tree, Left)
}
_OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
_ARGUMENT = re.compile(r"\*{0,2}[^\W\d]\w*")  # x, *args, **kwargs
_PATH = re.compile(r"[\w\- /+:@]+(\.[\w\- /+:@]+)*")  # fx writes getattr(self, "0") for a step that is no identifier
_NAMESPACES = ("aten", "quantized_decomposed", "fxquant")
_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "T", "mT", "H", "is_cuda", "requires_grad", "data", "real", "imag")
_SAFE_OPERATORS = tuple(
    getattr(operator, name)
    for name in operator.__all__
    if name not in ("attrgetter", "itemgetter", "methodcaller", "call")
)
_FACTORIES = (
    *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand, torch.randn),
    *(torch.scalar_tensor, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros),
)
_BUILTINS: tuple[Any, ...] = (
    *(abs, bool, dict, float, getattr, int, len, list, max, min, round, sum, tuple, OrderedDict),
)
_SAFE_MATH = tuple(value for value in vars(math).values() if isinstance(value, types.BuiltinFunctionType))


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Names of the functions that a stored graph may call."""
    found: dict[str, Callable[..., Any]] = {}
    table = [function for row in OPS.rows for function in row.functions]
    overridable = torch.overrides.get_overridable_functions()
    owners: tuple[Any, ...] = (torch, torch.nn.functional, torch.functional, torch.linalg, torch.fft, torch.special)
    plain = [f for owner in owners for f in overridable.get(owner, ())]
    for function in (*table, *plain, *_SAFE_OPERATORS, *_SAFE_MATH, *_FACTORIES, *_BUILTINS, torch._assert):
        found.setdefault(function_name(function), function)
    return found


@functools.cache
def tensor_methods() -> frozenset[str]:
    """Names of the methods that a stored graph may call."""
    overridable = torch.overrides.get_overridable_functions()
    named = (str(getattr(function, "__name__", "")) for function in overridable.get(torch.Tensor, ()))
    names = {name for name in named if not name.startswith("_")}  # __reduce_ex__ and the like are no ops
    return frozenset(names | {method for row in OPS.rows for method in row.methods} | {"size", "dim", "numel", "to"})


def function_name(function: Callable[..., Any]) -> str:
    """The name under which a function is stored."""
    return _get_qualified_name(function).replace("_operator.", "operator.")


def find_function(name: str, extra: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function with a stored name; an ArchiveError if it is not one that a graph may call."""
    if name in extra:
        return extra[name]
    if name.startswith("torch.ops."):
        _, _, namespace, packet, overload = (*name.split("."), "", "")[:5]
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
        if namespace in _NAMESPACES and op is not None and not _opens_file(op):
            return op  # type: ignore[no-any-return]
    found = _functions().get(name)
    if found is None:
        raise ArchiveError(
            f"the graph calls {name!r}, which is neither a function that computes on tensors nor one that fxquant.wrap "
            "was called on."
        )
    return found


def _opens_file(op: Any) -> bool:
    """aten::save and aten::from_file, which write and read a file with a name of their caller's choice."""
    return any(argument.name == "filename" for argument in op._schema.arguments)


def graph_to_json(graph: fx.Graph, extra: dict[str, Callable[..., Any]]) -> list[Any]:
    """The rows of a graph as JSON values."""
    rows = []
    names = {id(function): name for name, function in extra.items()}
    for node, (op, name, target, args, kwargs, meta) in zip(graph.nodes, encode_graph(graph)["rows"], strict=True):
        stored = target
        if op == "call_function":
            stored = target if isinstance(target, str) else function_name(target)
            stored = names.get(id(node.target), stored)
            if stored.startswith("torch._ops."):
                stored = str(target)
            find_function(stored, extra)
        _check_words(op, stored, kwargs)
        rows.append([op, name, stored, to_json(args), to_json(kwargs), to_json(meta)])
    return rows


def graph_from_json(rows: list[Any], extra: dict[str, Callable[..., Any]]) -> fx.Graph:
    """The inverse of `graph_to_json`."""
    decoded = []
    for op, name, target, args, kwargs, meta in rows:
        if op == "call_method" and target not in tensor_methods():
            raise ArchiveError(f"the graph calls the method {target!r}, which is not one of tensors.")
        function = find_function(target, extra) if op == "call_function" else target
        values, named = from_json(args), from_json(kwargs)
        _check_words(op, target, named)
        if function is getattr and (len(values) != 2 or values[1] not in _ATTRIBUTES):
            raise ArchiveError(f"the graph reads the attribute {values[1:]!r}, which is not one of tensors.")
        known = {key: value for key, value in from_json(meta).items() if key in META_KEYS}
        decoded.append((op, name, function, values, named, known))
    return decode_graph({"rows": decoded, "pytree": None})


def _check_words(op: str, target: str, kwargs: dict[str, Any]) -> None:
    """Refuse what fx would write into the source of `forward` as it stands, unless it is a name."""
    form = {"placeholder": _ARGUMENT, "get_attr": _PATH, "call_module": _PATH}.get(op)
    if op not in _OPCODES or (form is not None and not form.fullmatch(target)):
        raise ArchiveError(f"the graph has a node {op} {target!r}, which is no name that a graph may hold.")
    for key in kwargs:
        if not str(key).isidentifier():
            raise ArchiveError(f"the graph passes an argument {key!r} to {target!r}, which is no name of an argument.")


def to_json(value: Any) -> Any:
    """A plain value as JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, list):
        return ["list", *map(to_json, value)]
    if isinstance(value, tuple):
        return ["tuple", *map(to_json, value)]
    if isinstance(value, dict):
        return ["dict", *([to_json(k), to_json(v)] for k, v in value.items())]
    if isinstance(value, slice):
        return ["slice", *map(to_json, (value.start, value.stop, value.step))]
    if isinstance(value, Ref):
        return ["node", value.name]
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if value is Ellipsis:
        return ["ellipsis"]
    if any(value is function for function in ACTIVATIONS):
        return ["function", function_name(value)]  # a layer's activation
    if type(value).__name__ in _VALUES and dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return ["value", type(value).__name__, to_json(fields)]
    raise ArchiveError(f"the graph holds a {type(value).__name__}, which cannot be stored.")


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if not isinstance(value, list):
        return value
    tag, *rest = value
    if tag == "float":
        return float(rest[0])
    if tag == "list":
        return [from_json(item) for item in rest]
    if tag == "tuple":
        return tuple(from_json(item) for item in rest)
    if tag == "dict":
        return {from_json(k): from_json(v) for k, v in rest}
    if tag == "slice":
        return slice(*map(from_json, rest))
    if tag == "node":
        return Ref(rest[0])
    if tag == "torch":
        found = getattr(torch, rest[0], None)
        if isinstance(found, (torch.dtype, torch.memory_format, torch.layout)):
            return found
    if tag == "device":
        return torch.device(rest[0])
    if tag == "ellipsis":
        return Ellipsis
    if tag == "function":
        named = [function for function in ACTIVATIONS if function_name(function) == rest[0]]
        if named:
            return named[0]
    if tag == "value" and rest[0] in _VALUES:
        return _VALUES[rest[0]](**from_json(rest[1]))
    raise ArchiveError(f"the file holds a value of the unknown kind {tag!r}.")
