"""The graph that runs: the QDQ graph with the numbers of its grids in it, and in step with them.

    quantize(x, get_attr q.scale, get_attr q.zero_point, ...)   ->   quantize(x, 0.02, 128, ...)
    a pair whose grid says that there is none (numerics/grid.py)  ->  nothing, and the Decision of its kernel says why
    quantize(dequantize(q, ...), ...) on one grid               ->   q

What kernels, exporters and compilers get are constants. The QDQ graph itself stays in `RegionState.reference`, is what
is saved, and is filled again when a state_dict is loaded, or a grid written to, in place or not.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.core import compat
from fxquant.core.encode import decode_graph, encode_graph
from fxquant.core.graph import Region, regions
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.paths import get_attr, join_path
from fxquant.core.plan import Decision, decision_of, note_of
from fxquant.errors import StageError
from fxquant.numerics.counted import Counted
from fxquant.numerics.grid import OFF, Grid, share_counter
from fxquant.passes.quantized_weight import QuantizedWeight

_PER_TENSOR = (compat.QUANTIZE, compat.QUANTIZE_ROUNDING, compat.DEQUANTIZE)
_version = operator.attrgetter("_version")
Number = float | int | None  # None: not known


class Filled:
    """The numbers that a region's graph was made with, and whether its grids still have them."""

    def __init__(self, numbers: dict[str, Number] | None = None) -> None:
        self.numbers = numbers
        self.waiting = _waiting(numbers or {})
        self.edition = "0"  # of the graph; torch.compile compares text by value
        self._tensors: list[Tensor] = []  # one for all that share a version counter
        self._versions = 0
        self._changes = -1  # a copy looks again
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Filled, (self.numbers,)

    def ready(self, region: Region) -> None:
        """Before a call: bring the graph in step with its grids, and raise if one is not known."""
        if not torch.compiler.is_compiling():
            self.keep_up(region)
        if self.waiting or not self.edition:
            some, rest = ", ".join(self.waiting[:3]), len(self.waiting) - 3
            raise StageError(
                f"the model was converted without calibration, and waits for {some}"
                f"{f' and {rest} more' if rest > 0 else ''}. Load the state_dict of a calibrated model: "
                "model.load_state_dict(...). Or run calibrate(prepared, loader) before convert_fx."
            )

    def keep_up(self, region: Region) -> None:
        """Make the graph again if the grids are not as they were."""
        # few steps: this is before each call
        if self._changes == Counted.changes and sum(map(_version, self._tensors)) == self._versions:
            return
        with self._lock:
            self._look(region)

    def _look(self, region: Region) -> None:
        changes = Counted.changes
        tensors = dict(_grid_tensors(region))
        numbers = {name: _number(tensor) for name, tensor in tensors.items()}
        if numbers != self.numbers:
            for _, inner in regions(region):
                if inner is not region and inner._region.filled is not None:
                    inner._region.filled.keep_up(inner)
            self.waiting = _waiting(numbers)
            make_again(region)
            self.numbers = numbers
            self.edition = str(int(self.edition) + 1)
        counted = (tensor if tensor._base is None else tensor._base for tensor in tensors.values())
        self._tensors = list({id(tensor): tensor for tensor in counted if not tensor.is_inference()}.values())
        self._versions = sum(map(_version, self._tensors))
        self._changes = changes


def _grid_tensors(region: Region) -> Iterator[tuple[str, Tensor]]:
    """What the numbers of a region's graph, and of those inside, are read from, by name."""
    for path, module in region.named_modules():
        # not by attribute: a tracer of the model around would put proxies there
        if isinstance(module, Grid):
            names: tuple[str, ...] = ("scale", "zero_point")
        elif isinstance(module, QuantizedWeight):
            names = ("weight_scale", "weight_zero_point") if module.spec.granularity == "per_tensor" else ()
            names += ("bias_scale",)
        else:
            continue
        for name in names:
            tensor = module._buffers.get(name)
            if tensor is not None:
                yield join_path(path, name), tensor


def _number(tensor: Tensor) -> Number:
    """The number in a tensor; for several, whether all are known."""
    if tensor.is_meta:
        return None
    if tensor.dim():
        return None if bool(tensor.isnan().any()) else 0
    value: float | int = tensor.item()
    return None if math.isnan(value) else value


def _waiting(numbers: dict[str, Number]) -> tuple[str, ...]:
    return tuple(name for name, number in numbers.items() if number is None)


def fill_grids(region: Region) -> Region:
    """Turn a converted graph into the one that runs; the QDQ graph is kept. One that waits for grids stays as it is."""
    if region._region.filled is None:
        region._region.reference = encode_graph(region.graph)
        region._region.filled = Filled()
        share_counter([part for part in region.modules() if isinstance(part, Grid)])
        region._region.filled.keep_up(region)
    return region


def make_again(region: Region) -> Region:
    """Fill the QDQ graph with the numbers as they are now, and lower it if it was lowered."""
    put_back(region)
    if region._region.lower is not None:
        region._region.lower(region)
    return region


def put_back(region: Region, ops: OpTable = OPS) -> Region:
    """Put the QDQ graph back, filled, without the kernels that it was lowered to."""
    state = region._region
    region.__dict__.pop("forward", None)  # see engines/hooks.py
    if state.kernel_path:
        region.__dict__.pop(state.kernel_path, None)
        region.delete_submodule(state.kernel_path)
        state.kernel_path = ""
    assert state.reference is not None
    region.graph = filled_graph(region, ops)
    return region


def filled_graph(region: Region, ops: OpTable = OPS) -> fx.Graph:
    """The QDQ graph of a region with its numbers in it; as it is while some are not known."""
    assert region._region.reference is not None
    graph = decode_graph(region._region.reference)
    if region._region.filled.waiting:
        return graph
    off: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.target in _PER_TENSOR:
            _fill(region, node)
            if node.args[1] in OFF:
                off[node] = OFF[node.args[1]]
    _explain(region, graph, off, ops)
    for node in off:
        _drop(graph, node)
    _join(graph)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    graph.lint()
    return graph


def _fill(region: Region, node: fx.Node) -> None:
    x, scale, zero, *ends = node.args
    if isinstance(scale, fx.Node):
        scale = float(get_attr(region, str(scale.target)))
    if isinstance(zero, fx.Node):
        zero = int(get_attr(region, str(zero.target)))
    node.args = (x, scale, zero, *ends)


def _explain(region: Region, graph: fx.Graph, off: dict[fx.Node, str], ops: OpTable) -> None:
    """Ops whose tensors have no grid run in float, and their Decisions say so."""
    for node in graph.nodes if off else ():
        decision, op = decision_of(node), ops.of_node(node, region)
        if decision is None or op is None or note_of(node) is None:
            continue
        for near in (*activation_nodes(node, op), *node.users):
            if near in off:
                quantize = near.args[0] if near.target is compat.DEQUANTIZE else near
                assert isinstance(quantize, fx.Node)
                node.meta["decision"] = Decision(
                    kind=decision.kind,
                    status="float",
                    reason=f"its tensor {quantize.args[0]} {off[near]}",
                    rule=decision.rule,
                )


def _drop(graph: fx.Graph, node: fx.Node) -> None:
    """Take a quantize node and what dequantizes it out of the graph."""
    if node.target is compat.DEQUANTIZE:
        return
    source: Any = node.args[0]
    for user in list(node.users):
        if user.target is not compat.DEQUANTIZE:
            raise StageError(f"{node.name!r} is to be integers, and its tensor {OFF[node.args[1]]}.")  # type: ignore[index]
        same = user.kwargs.get("out_dtype") in (None, torch.float32)
        # a float64 tensor was cast on its way to the grid
        user.replace_all_uses_with(source if same or not _is_cast(source) else source.args[0])
        graph.erase_node(user)
    graph.erase_node(node)
    if _is_cast(source) and not source.users:
        graph.erase_node(source)


def _is_cast(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == "to"


def _join(graph: fx.Graph) -> None:
    """Where a tensor is quantized again to the grid that it comes from, it is passed on as it is."""
    for node in list(graph.nodes):
        if node.target is compat.QUANTIZE:
            source: Any = node.args[0]
            if source.target is compat.DEQUANTIZE and not source.kwargs and source.args[1:6] == node.args[1:6]:
                node.replace_all_uses_with(source.args[0])
                graph.erase_node(node)
                if not source.users:
                    graph.erase_node(source)
