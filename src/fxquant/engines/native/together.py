"""Rows of a batch taken together, where a graph treats every row of its inputs alike.

A program runs its samples one by one. If a sample is one row of linear layers, each reads all weights for itself; and a
range that a tensor has of its own is that of the whole batch. So rows become what a program has as one sample:

    (batch, n)        ->  (batch / 64, 64, n), and what is left over as (1, 32, n), ..., the last filled up with zeros
    (batch, ..., n)   ->  (1, batch, ..., n), where ranges are found

The sizes are few, since each has code of its own.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from fxquant.engines.native.activations import KINDS
from fxquant.engines.native.inputs import is_flat
from fxquant.engines.native.results import Result
from fxquant.engines.onednn.support import setting
from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import OPS

_ROWS = (8, 16, 32, 64)  # of a sample
_FEWEST = 4  # rows that are worth it
_FILLED = 8  # the most rows of zeros
_PLAIN = (
    *(torch_compat.QUANTIZE, torch_compat.DEQUANTIZE, torch_compat.QUANTIZE_TENSOR, torch_compat.DEQUANTIZE_TENSOR),
    *(torch_compat.CHOOSE_QPARAMS, torch_compat.CHOOSE_QPARAMS_SYMMETRIC),
)


def takes_rows(region: Region, graph: fx.Graph) -> bool:
    """Tell whether a graph does the same with every row, whatever the dims before the last."""
    fixed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr" or (node.all_input_nodes and fixed.issuperset(node.all_input_nodes)):
            fixed.add(node)
        elif not _by_row(region, node, fixed):
            return False
    return True


def _by_row(region: Region, node: fx.Node, fixed: set[fx.Node]) -> bool:
    if node.target in _PLAIN:
        return True
    if node.target is operator.getitem and isinstance(source := node.args[0], fx.Node):
        return source.target in _PLAIN
    op = OPS.of_node(node, region)
    kind = "" if op is None else op.kind
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if kind == "linear":
        return fixed.issuperset(node.all_input_nodes[1:])
    if kind in ("add", "sub", "mul", "div"):
        return all(_is_row(region, operand) for operand in node.all_input_nodes if operand in fixed)
    if kind == "layer_norm":
        return len(setting(node, module, 1, "normalized_shape", ())) == 1
    return kind in KINDS or kind in ("identity", "dropout")


def _is_row(region: Region, node: fx.Node) -> bool:
    """Tell whether a parameter is a number, or has one for each element of a row."""
    value = get_attr(region, str(node.target)) if node.op == "get_attr" else None
    return isinstance(value, (Tensor, nn.Parameter)) and value.dim() <= 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows, filled up with zeros to whole samples of `rows`."""

    inputs: list[object]
    first: int
    end: int
    rows: int

    @property
    def samples(self) -> int:
        return (self.end - self.first) // self.rows

    def part_of(self, memory: Tensor) -> Tensor:
        """Return the memory of these rows."""
        return memory[self.first : self.end].view(self.samples, self.rows, *memory.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """Inputs whose rows are taken together, in one call or several, and what leads back from the outputs."""

    pieces: list[Piece]
    batch: int
    whole: bool

    @property
    def exact(self) -> bool:
        """Whether one call gives all, and nothing else."""
        return len(self.pieces) == 1 and self.pieces[0].end == self.batch

    def memory(self, results: Iterable[Result]) -> dict[str, Tensor]:
        """Return memory for the results of all pieces, one behind the other."""
        if self.whole or self.exact:
            return {}
        total = self.pieces[-1].end
        return {each.node.name: torch.empty((total, *each.sizes[1:]), dtype=each.dtype) for each in results}

    def apart(self, made: Sequence[object]) -> object:
        """Return the outputs of all pieces as those of the batch."""
        return self._apart(*made) if isinstance(made[0], Tensor) else pytree.tree_map(self._apart, *made)

    def _apart(self, *made: object) -> object:
        parts = [each for each in made if isinstance(each, Tensor)]
        if not parts or self.whole:
            return parts[0][0] if parts else made[0]
        rows = [each.flatten(0, 1) for each in parts]
        if self.exact:
            return rows[0]
        one_memory = all(a.data_ptr() + a.nbytes == b.data_ptr() for a, b in itertools.pairwise(rows))
        size = (self.pieces[-1].end, *rows[0].shape[1:])
        whole = rows[0].as_strided(size, rows[0].stride()) if one_memory else torch.cat(rows)
        return whole[: self.batch]


def together(inputs: Sequence[object], batch: int, whole: bool) -> Together | None:
    """Return the inputs with their rows together; None if that is not worth it."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if not is_flat(inputs) or len({tensor.dim() for tensor in tensors}) != 1:
        return None
    if any(len(tensor) != batch for tensor in tensors):
        return None
    if whole:
        made = [value[None] if isinstance(value, Tensor) else value for value in inputs]
        return Together(pieces=[Piece(made, 0, 1, 1)], batch=batch, whole=True)
    if batch < _FEWEST or tensors[0].dim() != 2:
        return None
    pieces = [Piece([_rows(value, *place) for value in inputs], *place) for place in _places(batch)]
    return Together(pieces=pieces, batch=batch, whole=False)


def _places(batch: int) -> Iterator[tuple[int, int, int]]:
    """(first row, end, rows of a sample) of each piece."""
    first = 0
    while first < batch:
        left = batch - first
        rows = next((rows for rows in _ROWS if left <= rows <= left + _FILLED), 0)
        rows = rows or max(rows for rows in _ROWS if rows <= left)
        end = first + max(left // rows, 1) * rows
        yield first, end, rows
        first = end


def _rows(value: object, first: int, end: int, rows: int) -> object:
    if not isinstance(value, Tensor):
        return value
    some = filled(value, first, end) if end > len(value) else value[first:end].contiguous()
    return some.view(-1, rows, value.shape[1])


def filled(value: Tensor, first: int, end: int) -> Tensor:
    """Return rows from the first on, with zeros behind the last."""
    made = value.new_zeros(end - first, value.shape[1])
    made[: len(value) - first] = value[first:]
    return made
