"""Axes that hold the samples and something of each, (batch * k, ...), parted into two: (batch, k, ...).

Code of transformers takes all rows of a batch as one matrix, or cuts pictures into windows and takes those of all
pictures; later it puts the batch back. A program is made for one sample, so its tensors have the batch in front. Ops
that treat all rows alike do the same with the parted axes; before any other op they are merged again.

An axis is parted only if the batch is known to be its outer part: it was merged by a reshape that has the same number
of elements in front of the batch, before and after.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fxquant.engines.native.activations import KINDS
from fxquant.engines.native.fold_sizes import Values
from fxquant.engines.native.spelled import EACH, name_of
from fxquant.graph import torch_compat
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region
from fxquant.ops.table import OPS, argument
from fxquant.passes.read_op import setting

_EACH = (
    *(torch_compat.QUANTIZE, torch_compat.QUANTIZE_TENSOR, torch_compat.QUANTIZE_ROUNDING),
    *(torch_compat.DEQUANTIZE, torch_compat.DEQUANTIZE_TENSOR),
)
_SEEN = (torch_compat.CHOOSE_QPARAMS, torch_compat.CHOOSE_QPARAMS_SYMMETRIC)
Call: TypeAlias = tuple[str, Any, tuple[Any, ...], dict[str, Any]]  # op, target, args, kwargs of a node


class _Keeps(Exception):
    """A node whose operands have to be merged again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor has its batch, and how many things of each sample that axis holds."""

    axis: int
    rows: int


def part_batch(region: Region, graph: fx.Graph, runs: tuple[Values, Values]) -> bool:
    """Part such axes in place; tell whether there were any. `runs` are the values of all nodes for two batches."""
    places = {node: place for node in graph.nodes if (place := _place(*(run.get(node) for run in runs)))}
    if all(place.rows == 1 for place in places.values()):
        return False
    parter = _Parter(region, places, runs[0])
    for node in list(graph.nodes):
        parter.visit(node)
    return bool(parter.parted)


def _place(a: object, b: object) -> Place | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != b.dim():
        return None
    axes = [axis for axis, (few, many) in enumerate(zip(a.shape, b.shape, strict=True)) if few != many]
    if len(axes) != 1 or a.shape[axes[0]] % 2 or a.shape[axes[0]] * 5 != b.shape[axes[0]] * 2:
        return None
    return Place(axes[0], a.shape[axes[0]] // 2)


class _Parter:
    """Goes through a graph from its inputs on. `values` are those for a batch of two, before anything was parted."""

    def __init__(self, region: Region, places: dict[fx.Node, Place], values: Values) -> None:
        self.region, self.places, self.values = region, places, values
        self.shapes = {node: tuple(values[node].shape) for node in places}
        self.parted: dict[fx.Node, Place] = {}
        self.pieces: dict[fx.Node, Place] = {}  # nodes that return several parted tensors
        self.rules: Mapping[str, Callable[[fx.Node], Call]] = {
            **dict.fromkeys(("add", "sub", "mul", "div", "identity", "dropout", "cast", *KINDS), self._each),
            **dict.fromkeys(("reshape", "squeeze"), self._reshape),
            "permute": self._permute,
            "split": self._split,
            "slice": self._slice,
            "cat": self._cat,
            "linear": self._linear,
            "layer_norm": self._layer_norm,
            "softmax": self._softmax,
            "matmul": self._matmul,
            "attention": self._attention,
        }

    def visit(self, node: fx.Node) -> None:
        """Let a node take parted operands, or merge these again."""
        place = self.places.get(node)
        known = any(operand in self.parted or operand in self.pieces for operand in node.all_input_nodes)
        if not known and (place is None or place.rows == 1):
            return
        if node.target is operator.getitem and node.args[0] in self.pieces:
            self._remember(node)
            return
        if reads_size(node) and self._count(node):
            return
        if place is not None and place.axis == 0 and self._norm(node):
            return
        try:
            node.op, node.target, node.args, node.kwargs = self._rule(node)(node)
        except _Keeps:
            self._merge(node)
        else:
            self._remember(node)

    def _rule(self, node: fx.Node) -> Callable[[fx.Node], Call]:
        if node.op == "output":
            raise _Keeps
        if node.target in (*_EACH, *_SEEN) or name_of(node) in EACH:
            return self._each
        op = OPS.of_node(node, self.region)
        if op is None or op.kind not in self.rules:
            raise _Keeps
        return self.rules[op.kind]

    def _remember(self, node: fx.Node) -> None:
        place = self.places.get(node)
        if place is not None and place.rows > 1:
            self.parted[node] = place

    def _merge(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            if operand in self.parted:
                axis = self.parted[operand].axis
                with node.graph.inserting_before(node):
                    merged = node.graph.call_method("flatten", (operand, axis, axis + 1))
                node.replace_input_with(operand, merged)

    # what operands and results are

    def _source(self, node: fx.Node, index: int = 0) -> tuple[fx.Node, Place, int]:
        """(operand, its place, how many axes it had); it is parted."""
        op = OPS.of_node(node, self.region)
        source = node.args[index] if op is None else argument(node, op, index)
        if not isinstance(source, fx.Node) or source not in self.parted:
            raise _Keeps
        return source, self.parted[source], len(self.shapes[source])

    def _is_fixed(self, operand: fx.Node, most: int) -> bool:
        """Tell whether an operand has no batch, and is broadcast in the same way beside one more axis.

        It has at most `most` axes, those behind the batch, or one more that is a single element.
        """
        if operand in self.places or operand in self.pieces:
            return False
        value = self.values[operand]
        if not isinstance(value, Tensor):
            return not isinstance(value, (list, tuple))
        return value.dim() <= most or (value.dim() == most + 1 and value.shape[0] == 1)

    # rules: what a node becomes

    def _each(self, node: fx.Node) -> Call:
        """Ops on each element, which broadcast."""
        tensors = [operand for operand in node.all_input_nodes if operand in self.parted]
        if not tensors:
            raise _Keeps
        place, rank = self.parted[tensors[0]], len(self.shapes[tensors[0]])
        if any((self.parted[each], len(self.shapes[each])) != (place, rank) for each in tensors):
            raise _Keeps
        if node.target not in _SEEN and (self.places.get(node) != place or len(self.shapes[node]) != rank):
            raise _Keeps
        others = [operand for operand in node.all_input_nodes if operand not in tensors]
        if not all(self._is_fixed(operand, rank - 1 - place.axis) for operand in others):
            raise _Keeps
        return _as_it_is(node)

    def _reshape(self, node: fx.Node) -> Call:
        """All that leaves the elements in their order."""
        op = OPS.of_node(node, self.region)
        source = argument(node, op, 0) if op is not None else None
        if not isinstance(source, fx.Node):
            raise _Keeps
        before, after = self.places.get(source), self.places.get(node)
        if before is None or after is None or (before.rows > 1 and source not in self.parted):
            raise _Keeps
        given, made = self.shapes[source], self.shapes[node]
        if math.prod(given[: before.axis]) != math.prod(made[: after.axis]) or 0 in (*given, *made):
            raise _Keeps
        parts = (-1, after.rows) if after.rows > 1 else (-1,)
        return "call_method", "reshape", (source, *made[: after.axis], *parts, *made[after.axis + 1 :]), {}

    def _permute(self, node: fx.Node) -> Call:
        source, place, rank = self._source(node)
        if len(node.all_input_nodes) > 1 or node.op == "call_module":
            raise _Keeps
        probe = torch.empty(tuple(range(1, rank + 1)), device="meta")
        args = (probe, *node.args[1:])
        function: Any = node.target
        moved = (
            getattr(probe, function)(*args[1:], **node.kwargs)
            if node.op == "call_method"
            else function(*args, **node.kwargs)
        )
        order: list[int] = []
        for size in moved.shape:
            axis = size - 1
            order += [axis, axis + 1] if axis == place.axis else [axis + (axis > place.axis)]
        return "call_method", "permute", (source, *order), {}

    def _axis(self, axis: object, place: Place, rank: int) -> int:
        """Return where another axis than that of the batch is, beside one more."""
        if not isinstance(axis, int) or axis % rank == place.axis:
            raise _Keeps
        return axis % rank + (axis % rank > place.axis)

    def _split(self, node: fx.Node) -> Call:
        _, place, rank = self._source(node)
        if any(user.target is not operator.getitem or not isinstance(user.args[1], int) for user in node.users):
            raise _Keeps
        name = str(getattr(node.target, "__name__", node.target))
        count = 1 if name.startswith("unbind") else 2
        axis = node.kwargs.get("dim", node.args[count] if len(node.args) > count else 0)
        kwargs = {**node.kwargs, "dim": self._axis(axis, place, rank)}
        self.pieces[node] = place
        return node.op, node.target, node.args[:count], kwargs

    def _slice(self, node: fx.Node) -> Call:
        source, place, rank = self._source(node)
        if node.target is not operator.getitem:
            raise _Keeps
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        taken = sum(not (each is None or each is Ellipsis) for each in index)
        if index.count(Ellipsis) > 1:
            raise _Keeps
        full: list[Any] = []
        for each in index:
            full += [slice(None)] * (rank - taken) if each is Ellipsis else [each]
        made: list[Any] = []
        axis = 0
        for each in full:
            plain = each is None or type(each) is int or isinstance(each, slice)
            if not plain or (isinstance(each, slice) and any(isinstance(p, fx.Node) for p in _ends(each))):
                raise _Keeps
            if each is not None and axis == place.axis:
                if each != slice(None):
                    raise _Keeps
                made.append(each)
            made.append(each)
            axis += each is not None
        return "call_function", operator.getitem, (source, tuple(made)), {}

    def _cat(self, node: fx.Node) -> Call:
        op = OPS.of_node(node, self.region)
        tensors = argument(node, op, 0) if op is not None else ()
        places = {(self.parted.get(each), len(self.shapes.get(each, ()))) for each in tensors}
        place, rank = places.pop()
        if places or place is None:
            raise _Keeps
        axis = self._axis(node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0), place, rank)
        return "call_function", torch.cat, (tensors, axis), {}

    def _linear(self, node: fx.Node) -> Call:
        _, place, rank = self._source(node)
        if place.axis >= rank - 1 or any(other in self.places for other in node.all_input_nodes[1:]):
            raise _Keeps
        return _as_it_is(node)

    def _layer_norm(self, node: fx.Node) -> Call:
        _, place, rank = self._source(node)
        module = self.region.get_submodule(str(node.target)) if node.op == "call_module" else None
        if place.axis >= rank - len(setting(node, module, 1, "normalized_shape", ())):
            raise _Keeps
        return _as_it_is(node)

    def _softmax(self, node: fx.Node) -> Call:
        source, place, rank = self._source(node)
        module = self.region.get_submodule(str(node.target)) if node.op == "call_module" else None
        axis = self._axis(setting(node, module, 1, "dim", None), place, rank)
        dtype = node.kwargs.get("dtype")
        return "call_function", F.softmax, (source,), {"dim": axis, **({} if dtype is None else {"dtype": dtype})}

    def _matmul(self, node: fx.Node) -> Call:
        op = OPS.of_node(node, self.region)
        assert op is not None
        operands = [argument(node, op, index) for index in range(2)]
        parted = [operand for operand in operands if operand in self.parted]
        if not parted:
            raise _Keeps
        place, rank = self.parted[parted[0]], len(self.shapes[parted[0]])
        if place.axis >= rank - 2 or len(node.all_input_nodes) != len({*operands}):
            raise _Keeps
        for operand in operands:
            if operand in self.parted:
                if (self.parted[operand], len(self.shapes[operand])) != (place, rank):
                    raise _Keeps
            elif not self._is_fixed(operand, rank - 1 - place.axis):
                raise _Keeps
        return "call_function", torch.matmul, tuple(operands), {}

    def _attention(self, node: fx.Node) -> Call:
        _, place, rank = self._source(node)
        for operand in node.all_input_nodes:
            if operand in self.parted:
                if (self.parted[operand], len(self.shapes[operand])) != (place, rank):
                    raise _Keeps
            elif not self._is_fixed(operand, rank - 1 - place.axis):
                raise _Keeps
        if place.axis >= rank - 2 or any(self._source(node, index)[1] != place for index in (1, 2)):
            raise _Keeps
        return _as_it_is(node)

    def _count(self, node: fx.Node) -> bool:
        """Let a node that asks for the size of a parted tensor get that of the merged one; tell whether it is one."""
        source = node.args[0]
        assert isinstance(source, fx.Node)
        place, sizes = self.parted[source], self.shapes[source]
        axis = node.args[1] if len(node.args) > 1 and node.op == "call_method" else None
        whole = (node.op == "call_method" and len(node.args) == 1) or node.args[1:] == ("shape",)
        if (
            node.kwargs
            or not isinstance(self.values[node], torch.Size if whole else int)
            or (not whole and axis is None)
        ):
            return False
        with node.graph.inserting_before(node):
            count = node.graph.call_method("size", (source, place.axis))
        if whole:
            node.args = (count, place.rows, sizes[: place.axis], sizes[place.axis + 1 :])
            node.op, node.target = "call_function", merged_sizes
        else:
            node.op, node.target, node.args = "call_function", operator.mul, (count, place.rows)
        return True

    def _norm(self, node: fx.Node) -> bool:
        """Let a batch norm of rows find its channels on the second axis; tell whether the node is one."""
        module = self.region.get_submodule(str(node.target)) if node.op == "call_module" else None
        source = node.args[0] if node.args else None
        if not isinstance(module, nn.BatchNorm1d) or source not in self.parted or len(self.shapes[node]) != 2:
            return False
        assert isinstance(source, fx.Node)
        with node.graph.inserting_before(node):
            node.args = (node.graph.call_method("transpose", (source, 1, 2)),)
        with node.graph.inserting_after(node):
            back = node.graph.call_method("transpose", (node, 1, 2))
        node.replace_all_uses_with(back, lambda user: user is not back)
        self.places[back] = self.parted[back] = self.places.pop(node)
        self.shapes[back] = self.shapes.pop(node)
        return True


def merged_sizes(count: int, rows: int, before: tuple[int, ...], behind: tuple[int, ...]) -> torch.Size:
    """Return the sizes of a tensor whose axis of samples was parted."""
    return torch.Size((*before, count * rows, *behind))


def _as_it_is(node: fx.Node) -> Call:
    return node.op, node.target, node.args, node.kwargs


def _ends(each: slice) -> tuple[object, object, object]:
    return each.start, each.stop, each.step
