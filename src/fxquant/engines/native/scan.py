"""The step of a recurrent layer, run over a whole sequence in one native call.

`fxquant.modules` calls the step once for each time step. Its region's runner may take all of them at once: the graph of
the step is read, and where it is one of the cells that there is a kernel for (recurrent.py), `CellScan` runs it.
"""

from __future__ import annotations

import ctypes
import logging
import operator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from fxquant.engines.agreement import compare_results, nudge
from fxquant.engines.hooks import Hooks
from fxquant.engines.made_from import MadeFrom, made_from
from fxquant.engines.native.arithmetic import largest
from fxquant.engines.native.compiler import Library, module_text, object_code
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.parts import Bytes, aligned
from fxquant.engines.native.recurrent import Cell, Kind, emit, pack
from fxquant.engines.native.shapes import Unread
from fxquant.engines.onednn.pairs import may_overflow
from fxquant.engines.read_qdq import weight_holder
from fxquant.errors import FxQuantError
from fxquant.graph import torch_compat
from fxquant.graph.lowering import Steps, filled_graph
from fxquant.graph.region import Region, origin_of
from fxquant.modules.cells import gru_gates, lstm_gates, rnn_gates

log = logging.getLogger("fxquant")

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 4)
_LINEAR = torch.nn.functional.linear
_COMPARED = 4  # steps
_Tensors = tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]]  # weight, scale, bias


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A step that was read: its cell, and the tensors of its linear, as the kernel takes them."""

    cell: Cell
    weight: NDArray[np.int8]
    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    header: NDArray[np.float32]


def read_step(region: Region, graph: fx.Graph, machine: Machine) -> _Step:
    """Read the graph of a step. Raises `Unread` for what there is no kernel for."""
    gates = next((node for node in graph.nodes if node.target in (lstm_gates, gru_gates, rnn_gates)), None)
    if gates is None:
        raise Unread("it is not the step of a recurrent layer")
    kinds: dict[object, Kind] = {lstm_gates: "lstm", gru_gates: "gru", rnn_gates: "rnn_tanh"}
    kind = kinds[gates.target]
    if kind == "rnn_tanh" and gates.args[2]:
        kind = "rnn_relu"
    linear = gates.args[1]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    if len(inputs) < 2 or not isinstance(returned, (list, tuple)) or not isinstance(linear, fx.Node):
        raise Unread("it is not the step of a recurrent layer alone")
    state = inputs[1]
    wanted = [(gates, index) for index in range(2)] if kind == "lstm" else [(gates, None)]
    if [_item(node) for node in returned] != wanted or linear.target is not _LINEAR:
        raise Unread("its state is projected, or not what its gates give")
    rest = {"lstm": inputs[2:], "gru": [state]}.get(kind, [])
    if gates.args[0] is not inputs[0] or list(gates.args[2 : 2 + len(rest)]) != rest:
        raise Unread("its inputs are not those of the layer")
    holder = weight_holder(region, linear.args[1])
    if holder is None or holder.weight.dtype != torch.int8 or holder.weight_zero_point is not None:
        raise Unread("its weight is not int8 without zero points")
    if holder.spec.granularity == "per_group":
        raise Unread("its weight has a scale for each group")
    weight = holder.weight.numpy()
    scale = np.broadcast_to(holder.weight_scale.double().numpy(), (weight.shape[0],))
    bias = np.zeros(weight.shape[0]) if holder.bias is None else holder.dequantized("bias").double().numpy()
    x = linear.args[0]
    assert isinstance(x, fx.Node)
    return _grid(x, state, kind, (weight, scale, bias), machine)


def _item(node: object) -> tuple[object, int | None]:
    """(source, index) of an item, or the node itself."""
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        return node.args[0], int(node.args[1])  # type: ignore[arg-type]
    return node, None


def _grid(x: fx.Node, state: fx.Node, kind: Kind, tensors: _Tensors, machine: Machine) -> _Step:
    """Tell how the state is quantized before it is multiplied."""
    weight, scale, bias = tensors
    hidden, header = weight.shape[1], np.zeros(32, np.float32)
    if weight.shape[0] % hidden:
        raise Unread("its state is projected")
    if x is state:
        return _Step(
            cell=Cell(kind=kind, hidden=hidden, grid="none"), weight=weight, scale=scale, bias=bias, header=header
        )
    q = x.args[0] if x.target in (torch_compat.DEQUANTIZE, torch_compat.DEQUANTIZE_TENSOR) else None
    if not isinstance(q, fx.Node) or q.args[0] is not state:
        raise Unread("its state is quantized in another way")
    low, high, dtype = q.args[3:6]
    moved = 128 if dtype == torch.int8 else 0
    low, high = int(low) + moved, int(high) + moved  # type: ignore[arg-type]
    if q.target is torch_compat.QUANTIZE and dtype in (torch.uint8, torch.int8):
        step, zero = float(q.args[1]), int(q.args[2]) + moved  # type: ignore[arg-type]
        header[:16], header[16:] = 1.0 / step, zero
        pairs = not may_overflow(high, largest(weight))
        cell = Cell(kind=kind, hidden=hidden, grid="fixed", low=low, high=high, pairs=pairs)
        total = weight.astype(np.int64).sum(1)
        bias = bias + (machine.shift - zero) * step * scale * total
        return _Step(cell=cell, weight=weight, scale=scale * step, bias=bias, header=header)
    choose = _item(q.args[1])[0]
    if (
        q.target is not torch_compat.QUANTIZE_TENSOR
        or not isinstance(choose, fx.Node)
        or choose.target is not torch_compat.CHOOSE_QPARAMS
    ):
        raise Unread("its state is quantized in another way")
    if (low, high) != (0, 255) or dtype != torch.uint8 or choose.args[0] is not state:
        raise Unread("its state is quantized in another way")
    pairs = not may_overflow(high, largest(weight))
    cell = Cell(kind=kind, hidden=hidden, grid="found", eps=float(choose.args[3]), pairs=pairs)  # type: ignore[arg-type]
    return _Step(cell=cell, weight=weight, scale=scale, bias=bias, header=header)


class CellScan:
    """A step's kernel with its weights. Several threads may call it."""

    def __init__(self, step: _Step, machine: Machine) -> None:
        self.cell = step.cell
        text = module_text([emit("scan", step.cell, machine)], machine)
        self.library = Library(object_code(text, machine), machine)
        self.function = _PROTOTYPE(self.library.address("scan"))
        weights, params = pack(step.weight, step.scale, step.bias, step.cell, machine)
        self.packed = weights.nbytes
        self.free: list[Bytes] = []  # memory that no call uses: new pages take long
        self.weights, self.params = aligned(weights.nbytes + 256), aligned(4 * (32 + params.size))
        self.weights[: weights.nbytes] = weights
        self.params.view(np.float32)[:] = np.concatenate((step.header, params))

    def _take(self, size: int) -> Bytes:
        """Return memory that no other thread uses; what is too small is given up."""
        while self.free:
            try:
                found = self.free.pop()
            except IndexError:  # another thread took it
                break
            if found.nbytes >= size:
                return found
        return aligned(size)

    def __call__(self, x: Tensor, state: tuple[Tensor, ...], backwards: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(outputs, final state) for inputs [steps, rows, gates * hidden]."""
        x = x.detach().contiguous()
        steps, rows, hidden = x.shape[0], x.shape[1], self.cell.hidden
        first, *others = (each.detach().contiguous() for each in state)
        cell = others[0].clone() if others else x.new_empty(1)
        out = x.new_empty(steps, rows, hidden)
        scratch = self._take(self.cell.scratch(rows, self.packed) + 256)
        if self.cell.grid != "none":
            scratch[:] = 0
        sign, start = (-1, steps - 1) if backwards else (1, 0)
        x_step, out_step = 4 * x.stride(0), 4 * rows * hidden
        self.function(
            *(x.data_ptr() + start * x_step, self.weights.ctypes.data, self.params.ctypes.data, first.data_ptr()),
            *(cell.data_ptr(), scratch.ctypes.data, out.data_ptr() + start * out_step),
            *(steps, rows, sign * x_step, sign * out_step),
        )
        self.free.append(scratch)
        h = out[0 if backwards else -1].clone()
        return out, (h, cell) if others else (h,)


class Scans:
    """The scan of a region that is the step of a recurrent layer; made when it is first asked for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scan: CellScan | None = None
        self.refused = ""  # why there is none
        self.made_from: MadeFrom | None = None
        self.hooks = Hooks()

    def __call__(self, region: Region, x: Tensor, state: tuple[Tensor, ...], backwards: bool) -> Steps | None:
        """(outputs, final state), or None if the steps have to be run one by one."""
        if not torch_compat.plain_mode():  # a trace would write down that sizes are looked at
            return None
        usual = all(type(each) is Tensor and each.dtype == torch.float32 and each.is_cpu for each in (x, *state))
        if not usual or not x.numel() or self.hooks.listen(region):
            return None
        if self.made_from is None or not self.made_from.holds():
            self._make(region, x, state)
        return None if self.scan is None or not self._takes(x, state) else self.scan(x, state, backwards)

    def reads(self, region: Region) -> bool:
        """Tell whether the region is a step that there is a kernel for."""
        try:
            read_step(region, filled_graph(region), self.machine)
        except Unread:
            return False
        return True

    def _takes(self, x: Tensor, state: tuple[Tensor, ...]) -> bool:
        assert self.scan is not None
        cell, rows = self.scan.cell, x.shape[1]
        return x.shape[2] == cell.gates * cell.hidden and all(each.shape == (rows, cell.hidden) for each in state)

    def _make(self, region: Region, x: Tensor, state: tuple[Tensor, ...]) -> None:
        self.scan, self.refused, self.made_from = None, "", made_from(region)
        try:
            scan = CellScan(read_step(region, filled_graph(region), self.machine), self.machine)
            few = x[:_COMPARED]
            expected = _one_by_one(region, few, state)
            compare_results(
                expected, scan(few, state, False), lambda: _one_by_one(region, *nudge((few, state))), "native"
            )
        except (Unread, FxQuantError) as error:
            self.refused = str(error)
            log.info("%r runs step by step: %s", origin_of(region).path, error)
            return
        self.scan = scan


def _one_by_one(region: Region, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return what the graph of a step gives for a few steps."""
    graph, outputs = filled_graph(region), []
    with torch.no_grad():
        for step in x:
            state = tuple(fx.Interpreter(region, graph=graph).run(step, *state))
            outputs.append(state[0])
    return torch.stack(outputs), state
