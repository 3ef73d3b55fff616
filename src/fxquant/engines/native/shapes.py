"""Shapes of all tensors of a graph for inputs of one size, and which of them have the batch in front.

The graph is run twice on tensors without memory, with two batches: what changes is the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import Argument, Target
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from fxquant.capture.guards import apply_in_place, check_same
from fxquant.engines.native.fold_sizes import Values, fold_sizes
from fxquant.engines.native.inputs import batch_of
from fxquant.engines.native.part_batch import part_batch
from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region

_BATCHES = (2, 5)


class Unread(Exception):
    """A graph or a node that the native engine does not take, with the reason."""


class Changes(Unread):
    """A call changes the model, so one cannot be tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A tensor's shape, without the batch if it is `batched`."""

    dims: tuple[int, ...]
    dtype: torch.dtype
    batched: bool


Shapes: TypeAlias = Mapping[fx.Node, Any]  # a Shape, a tuple of such, or None for what is not a tensor


class _Shaper(fx.Interpreter):
    def __init__(self, root: nn.Module, graph: fx.Graph, tensors: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__(root, garbage_collect_values=False, graph=graph)
        self.tensors = tensors

    def _without_memory(self, tensor: Tensor) -> Tensor:
        known = self.tensors.get(id(tensor))
        if known is None:
            known = self.tensors[id(tensor)] = (
                tensor,
                _cast(tensor, tensor.dtype),
            )  # kept, so that its id stays its own
        return known[1]

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a node; whatever device they name, what it makes has no memory."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        given = {key: _nowhere(each) if key == "device" else each for key, each in kwargs.items()}
        return tuple(map(_nowhere, args)), given

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        found = get_attr(self.module, str(target))
        return self._without_memory(found) if isinstance(found, Tensor) else found

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        # these are many, and torch takes long for them
        if target in (torch_compat.QUANTIZE, torch_compat.DEQUANTIZE) and isinstance(args[0], Tensor) and not kwargs:
            return _cast(args[0], args[5] if target is torch_compat.QUANTIZE else torch.float32)
        if target is torch_compat.DEQUANTIZE_CHANNEL and not kwargs:
            return _cast(args[0], torch.float32)
        if target is torch_compat.QUANTIZE_CHANNEL:
            return _cast(args[0], args[6])
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        module = self.module.get_submodule(str(target))
        if any(isinstance(part, Region) for part in module.modules()):
            return _run_on_zeros(module, args, kwargs)
        own = {
            name: self._without_memory(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        return functional_call(module, own, args, kwargs) if own else module(*args, **kwargs)


def _nowhere(value: object) -> object:
    """Return the device of tensors without memory for one with it; other values as they are."""
    named = isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu")
    return torch.device("meta") if named else value


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _run_on_zeros(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Return what a module returns, without memory, for tensors without memory.

    Kernels inside need some, so it is run.
    """

    def zeros(x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_()

    args, kwargs = pytree.tree_map_only(Tensor, zeros, (args, kwargs))
    return pytree.tree_map_only(Tensor, lambda x: _cast(x, x.dtype), module(*args, **kwargs))


def _writes(node: fx.Node) -> bool:
    overload = node.target if isinstance(node.target, torch._ops.OpOverload) else None
    return node.target in (apply_in_place, operator.setitem) or (overload is not None and overload._schema.is_mutable)


def changes(root: nn.Module, graph: fx.Graph) -> str:
    """Say how a call would change the model; nothing if it would not."""
    if any(map(_writes, graph.nodes)):
        return "it writes to tensors in place"
    counts = any(isinstance(each, _NormBase) and each.training and each.track_running_stats for each in root.modules())
    return "it counts the statistics of its batches" if counts else ""


def find_shapes(root: Region, graph: fx.Graph, inputs: Sequence[object]) -> tuple[Shapes, Values]:
    """(node -> Shape, a tuple of such, or None for what is not a tensor; node -> value with a batch of 2).

    `inputs` are the values of the placeholders. Tensors among them have the batch in front; those that have 1 there,
    while others have more, are the same for all samples. Raises Unread if the graph does not run like that. Numbers
    that do not depend on the batch become constants of the graph.
    """
    if reason := changes(root, graph):
        raise Changes(reason)
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    runs = _run_twice(root, graph, inputs, tensors)
    fold_sizes(graph, runs)
    if part_batch(root, graph, runs):
        runs = _run_twice(root, graph, inputs, tensors)
    nodes = [node for node in graph.nodes if node.op != "output"]
    shapes = {node: _compared(runs[0][node], runs[1][node]) for node in nodes}
    for node in nodes:
        if _holds_always(node, shapes):
            graph.erase_node(node)
    return shapes, runs[0]


def _run_twice(
    root: nn.Module, graph: fx.Graph, inputs: Sequence[object], tensors: dict[int, tuple[Tensor, Tensor]]
) -> tuple[Values, Values]:
    """Return the values of all nodes for both batches."""
    runs: list[Values] = []
    own = batch_of(inputs)
    for batch in _BATCHES:
        interpreter = _Shaper(root, graph, tensors)
        given = pytree.tree_map_only(Tensor, lambda value: _with_batch(value, own, batch), list(inputs))  # noqa: B023
        try:
            with torch.no_grad():
                interpreter.run(*given, enable_io_processing=False)
        except Exception as error:  # anything that code of a model can raise
            first = str(error).strip().partition("\n")[0]  # torch.fx adds the node and its own advice
            raise Unread(f"its shapes cannot be found without data ({type(error).__name__}: {first})") from error
        runs.append(interpreter.env)
    return runs[0], runs[1]


def _holds_always(node: fx.Node, shapes: Shapes) -> bool:
    """Tell whether a node checks how many pieces a tensor has that is not cut along the batch; it held in two runs."""
    if node.target is not check_same or node.args[1] != "len":
        return False
    pieces = shapes.get(node.args[0])  # type: ignore[arg-type]
    return isinstance(pieces, (list, tuple)) and all(isinstance(piece, Shape) for piece in pieces)


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the axes from the outermost in memory to the innermost; () if that is their order."""
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))
    return () if order == tuple(range(len(strides))) else order


def _with_batch(value: Tensor, own: int, batch: int) -> Tensor:
    shape = (batch, *value.shape[1:]) if value.shape[0] == own else value.shape
    return torch.empty(shape, dtype=value.dtype, device="meta")


def _compared(a: object, b: object) -> object:
    if isinstance(a, Tensor):
        return _compare(a, b)
    return pytree.tree_map(_compare, a, b)


def _compare(a: object, b: object) -> Shape | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype != b.dtype:
        return None
    first, second = tuple(a.shape), tuple(b.shape)
    if first == second:
        return Shape(dims=first, dtype=a.dtype, batched=False)
    if first[1:] == second[1:] and (first[0], second[0]) == _BATCHES:
        return Shape(dims=first[1:], dtype=a.dtype, batched=True)
    return None
