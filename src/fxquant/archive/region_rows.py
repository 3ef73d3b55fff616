"""Regions as JSON rows, and back: the QDQ graph and what the region knows besides."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from fxquant.archive import whole_division
from fxquant.archive.check_structure import is_plain
from fxquant.archive.graph_json import graph_from_json, graph_to_json
from fxquant.archive.language import function_name, functions, methods
from fxquant.archive.module_rows import Row, name_of, stock_class
from fxquant.archive.sized_words import SIZED_WORDS
from fxquant.archive.value_json import from_json, to_json
from fxquant.archive.written_memory import grouped_mm
from fxquant.capture import guards
from fxquant.capture.conditions import as_conditions
from fxquant.capture.symbolic.trace import run_forward
from fxquant.errors import ArchiveError, InputError
from fxquant.graph.boundary import Boundary
from fxquant.graph.hooks import HOOK_TABLES
from fxquant.graph.lowering import start_lowering
from fxquant.graph.paths import find_module
from fxquant.graph.region import Region, origin_of, preparation_of
from fxquant.graph.region_parts import Origin
from fxquant.modules import attention, cells, transformer
from fxquant.numerics.grid import Grid
from fxquant.passes import convert_weights

Code = dict[str, Callable[..., Any]]
SELF = "_self"  # see Region._self
_GUARDS: dict[Callable[..., Any], int] = {  # with how many arguments; those behind the first are plain values
    **{guards.check_fixed: 3, guards.check_given: 2, guards.check_same: 3, guards.check_sizes: 3},
    **{guards.unpack: 3, guards.pack: 2, guards.take_item: 3, guards.check_items: 3, guards.check_key: 4},
}
_OWN: tuple[Callable[..., Any], ...] = (
    run_forward,
    *_GUARDS,
    *(guards.apply_in_place, guards.read_now),
    *(convert_weights.dequantize_rows, convert_weights.pool_rows, convert_weights.output_padding),
    *(cells.lstm_gates, cells.gru_gates, cells.rnn_gates, attention.join_masks, transformer.clear_padding),
    *(whole_division.divide, whole_division.divide_, grouped_mm),
    *SIZED_WORDS.values(),
)


@functools.cache
def _own_functions() -> dict[str, Callable[..., object]]:
    return {function_name(function): function for function in _OWN}


def region_row(path: str, region: Region, graph: fx.Graph, code: Code) -> Row:
    """Return the row of a region with this QDQ graph.

    `code` is what it may call of the user's own (code_functions.py).
    """
    origin = origin_of(region)
    try:
        _check_calls(graph)
        rows = graph_to_json(graph, {**code, **_own_functions()})
    except ArchiveError as error:
        raise ArchiveError(f"region {path or '<root>'!r} cannot be saved: {error}") from error
    further: dict[str, object] = {}
    if origin.path:  # a model that is one graph has no code to run beside it
        further = {"moved": {old: list(place) for old, place in origin.moved.items()}, "classes": [*origin.classes]}
    return {
        "kind": "region",
        "class": origin.class_name or name_of(origin.user_class),
        "method": origin.method,
        "num_inputs": origin.num_inputs,
        "input_names": list(origin.input_names),
        "flat": origin.flat,
        "order": origin.order,
        "boundary": to_json(preparation_of(region).boundary),
        "graph": rows,
        "code": sorted({row[2] for row in rows if row[0] == "call_function" and row[2] in code}),
        **{name: places for name, places in further.items() if places},
    }


def build_region(row: Row, part: nn.Module | None, code: Code) -> Region:
    """Return a region over the float model's module at its place, if there is one."""
    boundary = from_json(row["boundary"])
    known = stock_class(row["class"]) or nn.Module
    origin = Origin(
        user_class=known if part is None else type(part),
        class_name=str(row["class"]) if part is None else "",
        method=str(row["method"]),
        num_inputs=row["num_inputs"],
        input_names=tuple(map(str, row["input_names"])),
        flat=str(row["flat"]),
        order=int(row["order"]),
        moved={old: (place, turned) for old, (place, turned) in row.get("moved", {}).items()},
        classes={} if part is None else _classes(part, row.get("classes", [])),
    )
    graph = graph_from_json(row["graph"], {**code, **_own_functions()})
    _read_conditions(graph)
    _check_calls(graph)
    tree = nn.Module() if part is None else part
    region = Region(_around_child(tree) if origin.flat else tree, graph, origin)
    start_lowering(region)
    preparation_of(region).boundary = boundary if isinstance(boundary, Boundary) else None
    if origin.flat and part is not None:
        for table in HOOK_TABLES:  # of a stock module by itself; those inside a graph are not run
            region.__dict__[table] = part.__dict__[table]
    return region


def _classes(part: nn.Module, paths: list[str]) -> dict[str, type[nn.Module]]:
    """Return the classes that the float model has where stock modules were put, for its code (graph/as_written.py)."""
    found = {path: find_module(part, path) for path in paths}
    return {path: type(module) for path, module in found.items() if module is not None}


def _around_child(module: nn.Module) -> nn.Module:
    """Return the module without its tensors, which are its child's (see Origin.flat)."""
    shell = module.__class__.__new__(module.__class__)
    shell.__dict__.update(module.__dict__)
    shell.__dict__.update(_parameters={}, _buffers={}, _modules={}, _non_persistent_buffers_set=set())
    return shell


def _read_conditions(graph: fx.Graph) -> None:
    """Conditions on sizes are data; files of earlier versions hold them as expressions."""
    for node in graph.nodes:
        if node.target is guards.check_sizes:
            if node.kwargs or len(node.args) != 3 or len(node.args[0]) != len(node.args[1]):
                raise ArchiveError(f"node {node.name!r} checks no sizes.")
            try:
                node.args = (*node.args[:2], as_conditions(node.args[2]))
            except InputError as error:
                raise ArchiveError(f"node {node.name!r}: {error}") from error


def _check_calls(graph: fx.Graph) -> None:
    """Refuse what our own functions would look up by a name in their arguments."""
    for node in graph.nodes:
        words = (*node.args[1:3], None, None)
        if callable(node.target) and node.target in _GUARDS:
            _check_guard(node, _GUARDS[node.target])
        if node.target is guards.apply_in_place:
            method = words[0]
            if not isinstance(method, str) or method not in methods() or not method.endswith("_"):
                raise ArchiveError(f"the graph calls the method {method!r} in place, which is not one of tensors.")
        if node.target in (guards.pack, guards.unpack):
            structure = words[0 if node.target is guards.pack else 1]
            if not is_plain(structure):
                raise ArchiveError(
                    "the graph holds a container that cannot be stored: a defaultdict, or a dict with keys that are "
                    "neither strings nor numbers."
                )


def _check_guard(node: fx.Node, count: int) -> None:
    read: list[fx.Node] = []
    map_arg(node.args[1:], read.append)
    if node.kwargs or len(node.args) != count or read:
        raise ArchiveError(f"node {node.name!r} compares an argument with what is no plain value of the file.")


def check_references(path: str, region: Region) -> None:
    """Raise unless what a graph calls is a module, and what it reads a tensor, of the region.

    fx writes `self.conv(x)`, so a module must not go by the name of a method (`to_folder`), which would be called.
    """
    flat = origin_of(region).flat
    if flat and region._modules.get(flat) is None:
        raise ArchiveError(f"region {path or '<root>'!r}: it stands for {flat!r}, which is no module of the model.")
    boundary = preparation_of(region).boundary or Boundary()
    for grid in (*boundary.inputs.values(), *boundary.outputs.values()):
        if isinstance(grid, str) and not isinstance(find_module(region, grid), Grid):
            raise ArchiveError(
                f"region {path or '<root>'!r}: its boundary names {grid!r}, which is no grid of the model."
            )
    for node in region.graph.nodes:
        target, where = str(node.target), f"region {path or '<root>'!r}, node {node.name!r}"
        if node.op == "call_module" and (find_module(region, target) is None or _is_hidden(region, target)):
            raise ArchiveError(f"{where}: the graph calls {target!r}, which is no module of the model.")
        if node.op == "get_attr" and target == SELF:
            _check_self(where, region, node)
        elif node.op == "get_attr":
            owner_path, _, name = target.rpartition(".")
            owner = find_module(region, owner_path)
            found = None if owner is None else owner._parameters.get(name, owner._buffers.get(name))
            if owner is not None and is_default(owner, name):
                found, target = owner.__dict__.get(name), owner_path
            if not isinstance(found, Tensor) or (target and _is_hidden(region, target)):
                raise ArchiveError(f"{where}: the graph reads {target!r}, which is no tensor of the model.")


def _check_self(where: str, region: Region, node: fx.Node) -> None:
    """Raise where a graph reads the module itself for anything but functions that run its code."""
    known = (run_forward, *code_of(region))
    if origin_of(region).user_class is nn.Module or not all(user.target in known for user in node.users):
        raise ArchiveError(f"{where}: the graph reads the module itself.")


def code_of(region: Region) -> list[object]:
    """Return what a graph calls besides the functions of the language and our own."""
    named = {node.target for node in region.graph.nodes if node.op == "call_function"}
    return [each for each in named if each not in functions().values() and each not in _OWN and not _is_op(each)]


def _is_op(function: object) -> bool:
    return isinstance(function, torch._ops.OpOverload)


def is_default(owner: nn.Module, name: str) -> bool:
    """Tell whether the class of a module gives its tensor of this name a value to begin with: `anchors = None`."""
    static = inspect.getattr_static(type(owner), name, owner)
    return static is None or isinstance(static, Tensor)


def _is_hidden(root: nn.Module, path: str) -> bool:
    """Tell whether a step of a path reads as an attribute of the module's own, not as its child or tensor."""
    owner: nn.Module | None = root
    for step in path.split("."):
        if owner is None or step in owner.__dict__ or hasattr(type(owner), step):
            return True
        owner = owner._modules.get(step)
    return False
