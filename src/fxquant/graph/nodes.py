"""Questions about the nodes of a region, and the tensors that a run on the example inputs showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import fx

from fxquant.graph.fields import Field, field_of, read_items
from fxquant.graph.interpret import PlainInterpreter, interpret
from fxquant.graph.paths import join_path
from fxquant.graph.region import Region, kernel_path_of, origin_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """What a run on the example inputs showed of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point


def scope_path(node: fx.Node) -> str:
    """Return the path of a node: of its module for `call_module`, of the innermost enclosing module otherwise."""
    if node.op == "call_module":
        return str(node.target)
    scope = node.meta.get("scope", ())
    return str(scope[-1][0]) if scope else ""


def full_path(region: Region, node: fx.Node) -> str:
    """Return the path of a node in the whole model."""
    path, kernels = scope_path(node), kernel_path_of(region)
    if kernels and path.startswith(f"{kernels}."):
        scope = node.meta.get("scope", ())  # a kernel goes by the module that it stands for
        path = str(scope[-1][0]) if scope else ""
    origin = origin_of(region)
    return join_path(origin.path, "" if path == origin.flat else path)


_SIZE_METHODS = ("size", "dim", "ndimension", "numel", "nelement")
_SIZE_ATTRIBUTES = ("shape", "ndim", "device")
_SIZE_OPS = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)


def reads_size(node: fx.Node) -> bool:
    """Tell whether a node looks at the size of its operand only, so that any tensor of that size would do."""
    if node.op == "call_method":
        return node.target in _SIZE_METHODS
    if node.target is getattr:
        return node.args[1] in _SIZE_ATTRIBUTES
    return node.op == "call_function" and node.target in _SIZE_OPS


def nodes_after(node: fx.Node) -> set[fx.Node]:
    """Return all nodes behind one in the order of its graph."""
    found: set[fx.Node] = set()
    current = node.next
    while current.op != "root":
        found.add(current)
        current = current.next
    return found


def only_user(node: fx.Node) -> fx.Node | None:
    """Return the one node that takes the tensor, if there is just one; nodes that read its size do not count."""
    takers = [user for user in node.users if not reads_size(user)]
    return takers[0] if len(takers) == 1 else None


def last_input(node: fx.Node) -> fx.Node:
    """Return the node to insert after, for something that reads `node`.

    Placeholders stay together at the top of a graph.
    """
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node


def tensor_info(node: fx.Node) -> TensorInfo | None:
    """Return what is known of the tensor that a node returns; None for anything but a single tensor."""
    info = node.meta.get("tensor")
    return info if isinstance(info, TensorInfo) else None


NOT_HELD = object()
_Check = TypeVar("_Check", bound=Callable[..., None])
_checks: set[object] = set()


def holds_argument(check: _Check) -> _Check:
    """Make known a check `(argument, name, value)` of graphs that hold for one value of an argument."""
    _checks.add(check)
    return check


def held_value(placeholder: fx.Node) -> object:
    """Return the one value that an argument may have, or NOT_HELD."""
    return next((user.args[2] for user in placeholder.users if user.target in _checks), NOT_HELD)


class _Recorder(PlainInterpreter):
    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.fields: dict[fx.Node, Field] = {}

    def run_node(self, n: fx.Node) -> object:
        if n.target is getattr and len(n.args) == 2 and isinstance(n.args[0], fx.Node):
            field = field_of(self.env[n.args[0]], n.args[1])
            self.fields.update({} if field is None else {n: field})
        result = super().run_node(n)
        n.meta["tensor"] = _info(result)
        return result


def _info(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorInfo(dtype=value.dtype, shape=tuple(value.shape))
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return tuple(_info(item) for item in value)
    return None


def record_tensors(region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run the region once on example inputs, write `meta["tensor"]` of every node, and return the outputs.

    Attributes of containers become items.
    """
    recorder = _Recorder(region)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        made = interpret(recorder, args, kwargs)
    if recorder.fields:
        read_items(region.graph, recorder.fields)
        region.recompile()
    return made
