"""Rows of a batch taken together, where a graph treats every row of its inputs alike.

A program runs its samples one by one. If a sample is one row of linear layers, each reads all weights for itself; and a
range that a tensor has of its own is that of the whole batch. So rows become what a program has as one sample:

    (batch, n)        ->  (batch / rows, rows, n), filled up with zeros
    (batch, ..., n)   ->  (1, batch, ..., n), where ranges are found
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fxquant.engines.native.activations import KINDS
from fxquant.engines.onednn.support import setting
from fxquant.graph import torch_compat
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import OPS

_ROWS = (8, 16, 32, 64)  # of a sample; a batch gets the first that holds it
_FEWEST = 4  # rows that are worth it
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """Inputs whose rows are taken together, and what leads back from the outputs."""

    inputs: list[object]
    batch: int
    whole: bool

    def apart(self, made: object) -> object:
        """Return the outputs as those of the batch."""
        return pytree.tree_map_only(Tensor, self._apart, made)

    def _apart(self, tensor: Tensor) -> Tensor:
        if self.whole:
            return tensor[0]
        rows = tensor.flatten(0, 1)
        return rows if len(rows) == self.batch else rows[: self.batch].clone()


def together(inputs: Sequence[object], batch: int, whole: bool) -> Together | None:
    """Return the inputs with their rows together; None if that is not worth it."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if len({tensor.dim() for tensor in tensors}) != 1:
        return None
    if whole:
        made = [value[None] if isinstance(value, Tensor) else value for value in inputs]
        return Together(inputs=made, batch=batch, whole=True)
    if batch < _FEWEST or tensors[0].dim() != 2:
        return None
    rows = next((rows for rows in _ROWS if batch <= rows), _ROWS[-1])
    return Together(inputs=[_filled(value, rows) for value in inputs], batch=batch, whole=False)


def _filled(value: object, rows: int) -> object:
    if not isinstance(value, Tensor):
        return value
    missing = -len(value) % rows
    full = F.pad(value, (0, 0, 0, missing)) if missing else value.contiguous()
    return full.view(-1, rows, value.shape[1])
