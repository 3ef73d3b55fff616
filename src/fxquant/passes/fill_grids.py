"""The graph that runs: the QDQ graph with the numbers of its grids in it, and in step with them.

    quantize(x, get_attr q.scale, get_attr q.zero_point, ...)   ->   quantize(x, 0.02, 128, ...)
    a pair whose grid says that there is none (numerics/grid.py)  ->  nothing, and the Decision of its kernel says why
    quantize(dequantize(q, ...), ...) on one grid               ->   q

What kernels, exporters and compilers get are constants. The QDQ graph itself stays in `Lowering.reference`, is what
is saved, and is filled again when a state_dict is loaded, or a grid written to, in place or not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.errors import InputError, StageError, on_meta
from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.encode import encode_graph
from fxquant.graph.grid import QParams
from fxquant.graph.lowering import lower_again, reads_of, reference_graph, start_lowering
from fxquant.graph.notes import Decision, decision_of, note_of
from fxquant.graph.one_at_a_time import OwnLock
from fxquant.graph.paths import get_attr, join_path
from fxquant.graph.read_modules import ReadModules
from fxquant.graph.region import Region, lowering_of, regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.standing import Standing
from fxquant.numerics.grid import OFF, Grid, share_memory, why_off
from fxquant.numerics.seen import Seen
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.table import OPS, OpTable, Role, activation_nodes

_DEQUANTIZE = (torch_compat.DEQUANTIZE, torch_compat.DEQUANTIZE_CHANNEL)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NOT_GIVEN = object()
Number = float | int | tuple[float, ...] | None  # None: not known


class Filled:
    """The numbers that a region's graph was made with, and whether its grids still have them."""

    def __init__(
        self,
        numbers: dict[str, Number] | None = None,
        inputs: tuple[tuple[int, str], ...] = (),
        replaced: bool = False,
    ) -> None:
        self.numbers = numbers
        self.replaced = replaced  # modules were, of the region that this is a copy of, since its graph was made
        self.inputs = inputs  # (place, name) of those that the graph quantizes
        self.waiting = _waiting(numbers or {})
        self.edition = "0"  # of the graph; torch.compile compares text by value
        self._seen: Seen | None = None  # a copy looks again
        self._modules: ReadModules | None = None
        self._lock = OwnLock()

    def __reduce__(self) -> tuple[object, ...]:
        replaced = self.replaced or (self._modules is not None and not self._modules.stand())
        return Filled, (self.numbers, self.inputs, replaced)

    def copied(self, region: Region) -> None:
        """Note which modules the graph of a copy was made with: they may be replaced before its first call."""
        with contextlib.suppress(StageError):  # one is missing, which the call will say
            self._modules = ReadModules(region, reads_of(region))

    def ready(self, region: Region) -> None:
        """Before a call: bring the graph in step with its grids, and raise if one is not known."""
        if not torch.compiler.is_compiling():
            self.keep_up(region)
        if self.waiting or not self.edition:
            some, rest = ", ".join(self.waiting[:3]), len(self.waiting) - 3
            if any(tensor is not None and tensor.is_meta for tensor in (at[key] for _, at, key in _places(region))):
                raise on_meta(some)
            raise StageError(
                f"the model was converted without calibration, and waits for {some}"
                f"{f' and {rest} more' if rest > 0 else ''}. Load the state_dict of a calibrated model: "
                "model.load_state_dict(...). Or run calibrate(prepared, loader) before convert_fx."
            )

    def refuses(self, args: tuple[object, ...], kwargs: dict[str, object]) -> InputError | None:
        """Tell why no grid takes an input of a call: engines differ in what they would make of it."""
        for place, name in self.inputs:
            value = args[place] if place < len(args) else kwargs.get(name, _NOT_GIVEN)
            if isinstance(value, Tensor) and value.dtype in _FLOATS and value.layout == torch.strided:
                continue
            if value is _NOT_GIVEN or isinstance(value, fx.Proxy):
                continue  # the call, or the trace, has its own errors
            found = type(value).__name__
            if isinstance(value, Tensor):
                found = f"of {value.dtype}" if value.layout == torch.strided else f"in the layout {value.layout}"
            todo = "Convert it first, with torch.as_tensor(x).float()."
            if isinstance(value, Mapping):
                found = f"a dict of {', '.join(map(repr, value))}"[:80]
                todo = f"Give the tensor, or arguments by their names ({name!r})."
            return InputError(
                f"input {place} ({name!r}) is {found}, and the model quantizes it: it takes a dense tensor of float32 "
                f"there (or of float16 or bfloat16). {todo}"
            )
        return None

    def keep_up(self, region: Region) -> None:
        """Make the graph again if the grids are not as they were."""
        seen, modules = self._seen, self._modules
        if seen is not None and seen.holds() and modules is not None and modules.stand():
            return
        with self._lock:
            self._look(region)

    def standing(self) -> Standing | None:
        """Return what `keep_up` looks at; None before it did."""
        seen, modules = self._seen, self._modules
        return None if seen is None or modules is None else seen.standing() + modules.standing()

    def graph(self, region: Region) -> fx.Graph:
        """Make the QDQ graph with the numbers in it; as it is while some are not known."""
        graph = reference_graph(region)
        if not self.waiting:
            _filled(region, graph, OPS)
            self.inputs = _quantized_inputs(region, graph)
        return graph

    @torch_compat.on_plain_sizes  # what it reads is no part of a trace
    def _look(self, region: Region) -> None:
        replaced = self.replaced or (self._modules is not None and not self._modules.stand())
        modules = ReadModules(region, reads_of(region))
        places = list(_places(region))
        seen = Seen([table for _, table, _ in places], [key for _, _, key in places])
        numbers = {name: _number(name, table[key]) for name, table, key in places}
        if numbers != self.numbers or replaced:
            for _, inner in regions(region):
                if inner is not region and (filled := lowering_of(inner).filled) is not None:
                    filled.keep_up(inner)
            self.waiting = _waiting(numbers)
            lower_again(region)
            self.numbers = numbers
            self.edition = str(int(self.edition) + 1)
        self._seen, self._modules, self.replaced = seen, modules, False


def _places(region: Region) -> Iterator[tuple[str, dict[str, Tensor | None], str]]:
    """Tell where the numbers of a region's graph, and of those inside, are read from: (name, table, key)."""
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
            for table in (module._buffers, module._parameters):
                if table.get(name) is not None:
                    yield join_path(path, name), table, name


def _number(name: str, tensor: Tensor | None) -> Number:
    """Return the number in a tensor, or several; of biases, whose copies go by themselves, whether all are known."""
    if tensor is None or tensor.is_meta:
        return None
    if tensor.dim():
        if bool(tensor.isnan().any()):
            return None
        return 0 if name.endswith("bias_scale") else tuple(tensor.tolist())
    value: float | int = tensor.item()
    return None if math.isnan(value) else value


def _waiting(numbers: dict[str, Number]) -> tuple[str, ...]:
    return tuple(name for name, number in numbers.items() if number is None)


def fill_grids(region: Region, context: Context | None = None) -> None:
    """Turn a converted graph into the one that runs; the QDQ graph is kept. One that waits for grids stays as it is."""
    lowering = lowering_of(region) if stage_of(region) is Stage.CONVERTED else start_lowering(region)
    if lowering.filled is None:
        lowering.reference = encode_graph(region.graph)
        lowering.filled = Filled()
        share_memory([part for part in region.modules() if isinstance(part, Grid)])
        lowering.filled.keep_up(region)


def _filled(region: Region, graph: fx.Graph, ops: OpTable) -> None:
    off: dict[fx.Node, str] = {}
    for node in graph.nodes:
        grid = QParams.of(node)
        if grid is not None and grid.axis is None:
            _fill(region, node)
            if node.args[1] in OFF:
                off[node] = OFF[node.args[1]]
        elif grid is not None and (why := _why_off(region, grid)) is not None:
            off[node] = why
        elif grid is not None:
            _fill_channels(region, node, grid)
    _explain(region, graph, off, ops)
    for node, why in off.items():
        _drop(graph, node, why)
    _join(graph)
    _merge(graph)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    graph.lint()


def _quantized_inputs(region: Region, graph: fx.Graph) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, str(node.target))
        for place, node in enumerate(graph.find_nodes(op="placeholder"))
        if not str(node.target).startswith("*") and _is_quantized(region, node)
    )


def _is_quantized(region: Region, node: fx.Node) -> bool:
    """Tell whether a tensor is quantized, as it is or behind ops that move its values: those keep its dtype."""
    for user in node.users:
        if user.target in torch_compat.QUANTIZE_OPS and user.args[0] is node:
            return True
        op = OPS.of_node(user, region)
        moves = op is not None and op.role is Role.SHARE and activation_nodes(user, op) == [node]
        if moves and _is_quantized(region, user):
            return True
    return False


def _why_off(region: Region, grid: QParams) -> str | None:
    """Tell why a grid per channel, which the graph goes on reading, is none."""
    path = str(grid.scale.target)
    holder = region.get_submodule(path.rpartition(".")[0])
    return why_off(get_attr(region, path)) if isinstance(holder, Grid) else None


def _fill_channels(region: Region, node: fx.Node, grid: QParams) -> None:
    """Channels that all have the same scale are on one grid."""
    path = str(grid.scale.target)
    holder = region.get_submodule(path.rpartition(".")[0])
    if not isinstance(holder, Grid):
        return
    scale, zero = get_attr(region, path), get_attr(region, str(grid.zero_point.target))
    if bool((scale == scale.reshape(-1)[0]).all()) and bool((zero == zero.reshape(-1)[0]).all()):
        quantizes = node.target is grid.quantize_op
        one = replace(grid, scale=float(scale.reshape(-1)[0]), zero_point=int(zero.reshape(-1)[0]), axis=None)
        node.target = one.quantize_op if quantizes else one.dequantize_op
        node.args = (node.args[0], *(one.quantize_args if quantizes else one.args))
    elif node.target is grid.dequantize_op:
        for user in node.users:
            if (decision := decision_of(user)) is not None:
                times = float(scale.max() / scale.min())
                why = (
                    f"{decision.reason}; a scale for each channel of its input, since their ranges differ {times:.0f}x"
                )
                user.meta["decision"] = replace(decision, reason=why)


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
                quantize = near.args[0] if near.target in _DEQUANTIZE else near
                assert isinstance(quantize, fx.Node)
                node.meta["decision"] = Decision(
                    kind=decision.kind,
                    status="float",
                    reason=f"its tensor {quantize.args[0]} {off[near]}",
                    rule=decision.rule,
                )


def _drop(graph: fx.Graph, node: fx.Node, why: str) -> None:
    """Take a quantize node and what dequantizes it out of the graph."""
    if node.target in _DEQUANTIZE:
        return
    source: Any = node.args[0]
    for user in list(node.users):
        if user.target not in _DEQUANTIZE:
            raise StageError(f"{node.name!r} is to be integers, and its tensor {why}.")
        same = user.kwargs.get("out_dtype") in (None, torch.float32)
        # a float64 tensor was cast on its way to the grid
        user.replace_all_uses_with(source if same or not _is_cast(source) else source.args[0])
        graph.erase_node(user)
    graph.erase_node(node)
    if _is_cast(source) and not source.users:
        graph.erase_node(source)


def _is_cast(node: object) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target == "to"


def _merge(graph: fx.Graph) -> None:
    """Round a tensor once that two quantizers round to the same grid."""
    known: dict[tuple[object, ...], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is torch_compat.QUANTIZE:
            first = known.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _join(graph: fx.Graph) -> None:
    """Pass a tensor on as it is where it is quantized again to the grid that it comes from."""
    for node in list(graph.nodes):
        if node.target is torch_compat.QUANTIZE:
            source: Any = node.args[0]
            if source.target is torch_compat.DEQUANTIZE and not source.kwargs and source.args[1:6] == node.args[1:6]:
                node.replace_all_uses_with(source.args[0])
                graph.erase_node(node)
                if not source.users:
                    graph.erase_node(source)
