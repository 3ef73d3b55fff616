"""Put tensors in order where they can be seen: the last step of lowering.

conv kernel -> max_pool -> add -> dequantize -> view      the integers are put in the float model's layout before the
                                                          dequantize, once; between kernels they lie as kernels like

A tensor that may lie otherwise than the float model's is *hidden*. It stays so through ops that compute the same
however their operands lie (`Op.layout` in the op table, `meta["layout"]` of our own kernels). Anything else, and the
caller, is given it restored.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from fxquant.engines import layout
from fxquant.engines.onednn import kernels
from fxquant.engines.onednn.kernel_modules import ConvKernel, Kernel
from fxquant.graph.nodes import reads_size, tensor_info
from fxquant.graph.region import Region
from fxquant.ops.table import Layout, OpTable, activation_nodes

_PICTURES = (4, 5)
_KEEPING = (kernels.quantize, kernels.dequantize, kernels.quantize_dynamic)  # lie as their operands do


def mark(node: fx.Node, rule: Layout | None, *operands: int) -> fx.Node:
    """Say of a node that calls a kernel how the float op's result would lie; `operands` are places in its arguments."""
    if rule is not None:
        node.meta["layout"] = (rule.value, operands)
    return node


def lower_layout(region: Region, ops: OpTable) -> None:
    """Insert the nodes that find layouts, and those that restore them."""
    _Hidden(region, ops).lower()


class _Hidden:
    """The hidden tensors of a graph, each with the node that says how it would lie."""

    def __init__(self, region: Region, ops: OpTable) -> None:
        self.region = region
        self.graph = region.graph
        self.ops = ops
        self.paths = {id(module): path for path, module in region.named_modules(remove_duplicate=False)}
        self.layouts: dict[fx.Node, fx.Node] = {}
        self.restored: dict[fx.Node, fx.Node] = {}

    def lower(self) -> None:
        for node in list(self.graph.nodes):
            rule, operands = self._rule(node)
            hidden = [operand for operand in operands if operand in self.layouts]
            for source in [source for source in node.all_input_nodes if source in self.layouts]:
                if source not in hidden and not reads_size(node):
                    node.replace_input_with(source, self._restore(source))
            if rule not in (None, Layout.NEW) and (hidden or self._hides(node)):
                self._hide(node, rule, operands)
        self.graph.eliminate_dead_code()

    def _rule(self, node: fx.Node) -> tuple[Layout | None, list[fx.Node]]:
        """Tell how the result of a node lies, and the operands that decide it; None if the node has to see them."""
        rule, operands = self._known(node)
        if rule is None or not operands:
            return None, []
        # a view lies as its source does, and bytes are cheaper to put in order than floats
        passes_on = rule is Layout.PART or node.target in (kernels.dequantize, kernels.quantize_dynamic)
        if passes_on and not all(self._is_blind(user, node) for user in node.users):
            return None, []
        return rule, operands

    def _known(self, node: fx.Node) -> tuple[Layout | None, list[fx.Node]]:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = node.args[0]
            if source.target is kernels.quantize_dynamic:
                return Layout.NEW if node.args[1] else Layout.PART, [source]  # the grid comes after the integers
            if self._known(source)[0] is Layout.PART:
                return Layout.PART, [source]
        if "layout" in node.meta:
            rule, places = node.meta["layout"]
            return Layout(rule), [source for place in places if isinstance(source := node.args[place], fx.Node)]
        op = self.ops.of_node(node, self.region)
        several = isinstance(node.meta.get("tensor"), tuple)
        operands = activation_nodes(node, op) if op is not None else []
        if op is not None and op.kind == "reshape" and _drops_pixel(node, operands):
            return Layout.NEW, operands
        if op is None or op.layout is None or several != (op.layout is Layout.PART):
            return None, []
        ranks = {len(info.shape) for each in (node, *operands) if (info := tensor_info(each)) is not None}
        if op.layout in (Layout.POOL, Layout.CAT) and not ranks.issubset(_PICTURES):
            return None, []  # there these make lines contiguous, or not, each in its own way
        if op.layout is Layout.PART and not _keeps_rank(node, operands[0]):
            return None, []
        return op.layout, operands

    def _is_blind(self, user: fx.Node, node: fx.Node) -> bool:
        return reads_size(user) or node in self._rule(user)[1]

    def _hides(self, node: fx.Node) -> bool:
        """Tell whether a node makes a tensor that lies otherwise, of ones that do not."""
        return "layout" in node.meta and node.target not in _KEEPING

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.region.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _hide(self, node: fx.Node, rule: Layout, operands: list[fx.Node]) -> None:
        known = [self.layouts.get(operand, operand) for operand in operands]
        with self.graph.inserting_before(node.next):
            if rule is Layout.PART:
                found = known[0]
            elif rule is Layout.CAT:
                found = self.graph.call_function(layout.after_cat, (known, operands))
            elif rule is Layout.POOL:
                found = self.graph.call_function(layout.after_pool, (known[0], operands[0]))
            elif rule is Layout.EACH:
                found = self.graph.call_function(layout.after_each, (known, operands, node))
            else:
                found = self._after_conv(node, known, operands)
        self.layouts[node] = found

    def _after_conv(self, node: fx.Node, known: list[fx.Node], operands: list[fx.Node]) -> fx.Node:
        """Of a convolution, and of the sum that its kernel may end in."""
        x, module = node.args[0], self._module(node)
        weight: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
        if module is not None:
            path = self.paths[id(module.holder)] if isinstance(module, Kernel) else node.target
            weight = self.graph.get_attr(f"{path}.weight")
        place = operands.index(x) if isinstance(x, fx.Node) else 0
        geometry = module.geometry if isinstance(module, ConvKernel) and module.rank == 5 else None
        known[place] = self.graph.call_function(layout.after_conv, (known[place], x, weight, node, geometry))
        if len(operands) == 1:
            return known[0]
        tensors = [node if at == place else operand for at, operand in enumerate(operands)]
        return self.graph.call_function(layout.after_each, (known, tensors, node))

    def _restore(self, node: fx.Node) -> fx.Node:
        if node not in self.restored:
            with self.graph.inserting_before(self.layouts[node].next):
                self.restored[node] = self.graph.call_function(layout.restored, (node, self.layouts[node]))
            self.restored[node].meta["tensor"] = node.meta.get("tensor")
        return self.restored[node]


def _drops_pixel(node: fx.Node, operands: list[fx.Node]) -> bool:
    """Tell whether pictures of one pixel, fresh from a mean, become rows, which lie in one way only."""
    info, source = tensor_info(node), operands[0] if operands else None
    while source is not None and source.target in (kernels.quantize, kernels.dequantize):
        source = source.all_input_nodes[0]
    return source is not None and source.target is kernels.mean and info is not None and len(info.shape) == 2


def _keeps_rank(node: fx.Node, operand: fx.Node) -> bool:
    """Tell whether a split gives parts that are used one by one, of the same rank."""
    if not all(user.target is operator.getitem for user in node.users):
        return False
    parts, info = node.meta.get("tensor"), tensor_info(operand)
    return isinstance(parts, tuple) and info is not None and all(len(p.shape) == len(info.shape) for p in parts)
