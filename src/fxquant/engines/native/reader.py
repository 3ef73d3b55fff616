"""Read a converted (QDQ) graph into native ops, with what has no kernel between them.

A node's value is one of
    View      a tensor of the program; a dequantize is the tensor it reads, on its grid
    Lazy      an expression of such, not computed yet: the kernel that takes it in computes it
    Outside   a value of Python: an input, a parameter, or what a node without a kernel returns

Native ops are on even levels, the others on odd ones, each on the first one that its operands allow. A level of native
ops is one call of machine code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from fxquant.engines.native import elementwise
from fxquant.engines.native.elementwise import Access, Elementwise
from fxquant.engines.native.lazy import Lazy, Moved, Outside, Value, lazy, shown
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import Constants, Emit, Op, Pointer, levels, pointer
from fxquant.engines.native.pixels import border_of, fill_border
from fxquant.engines.native.shapes import Shape, Unread
from fxquant.engines.native.slots import Export, Import
from fxquant.engines.native.values import (
    TRUTH,
    Buffer,
    DType,
    Grid,
    View,
    axes_by_stride,
    broadcast,
    collapse,
    dense,
    drop_height,
    image,
    is_image,
)
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import OPS, OpTable

_FEW = 4  # channels of a picture
_ATEN = torch.ops.aten
_CREATORS = (  # without a tensor among their operands, they always return the same
    *(torch.arange, torch.zeros, torch.ones, torch.full, torch.linspace, torch.eye),
    *(_ATEN.arange.default, _ATEN.arange.start, _ATEN.arange.start_step, _ATEN.zeros.default, _ATEN.ones.default),
    *(_ATEN.full.default, _ATEN.linspace.default, _ATEN.eye.default),
)


@dataclass(kw_only=True)
class Reader:
    """The state of reading one graph."""

    region: Region
    graph: fx.Graph
    shapes: Mapping[fx.Node, Any]
    machine: Machine
    table: OpTable = OPS
    values: dict[fx.Node, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    constants: Constants = field(default_factory=Constants)
    imports: dict[int, Import] = field(default_factory=dict)  # by slot
    exports: dict[fx.Node, Export] = field(default_factory=dict)
    reasons: dict[fx.Node, str] = field(default_factory=dict)  # of nodes that Python runs
    sizes: Mapping[fx.Node, Any] = field(default_factory=dict)  # values that are no tensors, for a batch of 2
    fused: set[fx.Node] = field(default_factory=set)  # nodes that the kernel of a weighted op takes in
    taken: dict[fx.Node, View] = field(default_factory=dict)  # quantize nodes that another kernel takes in
    splits: dict[fx.Node, list[View | Moved]] = field(default_factory=dict)
    ranges: dict[fx.Node, View] = field(default_factory=dict)  # scale and zero of tensors on the grid of their own
    whole: bool = False  # such a grid is that of one sample, so there may be no others
    flag: Buffer | None = None  # a word that kernels set where an input has no answer
    _slots: int = 0

    def attempt(self, make: Callable[[], Value]) -> Value:
        """Return what `make` returns; if it raises Unread, all that it did is undone."""
        count, values = len(self.ops), dict(self.values)
        try:
            return make()
        except Unread:
            del self.ops[count:]
            self.values = values
            raise

    # shapes and operands

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Return the shape of one sample."""
        found = self.shapes.get(node)
        if not isinstance(found, Shape) or not found.batched:
            raise Unread("its output has no batch in front")
        return found.dims

    def view(self, node: object, channels: bool = False) -> View:
        """Return the operand as a tensor of the program.

        It has a scale for each channel only if `channels` asks for such.
        """
        if not isinstance(node, fx.Node):
            raise Unread("an operand is not a tensor")
        value = self.values[node]
        if isinstance(value, Lazy):
            value = self.values[node] = self.compute(value, node)
        elif isinstance(value, Outside):
            value = self.take_in(value)
        elif isinstance(value, Moved):
            raise Unread("its operand has no batch in front")
        if value.grid is not None and value.grid.channels and not channels:
            raise Unread("its input has a scale for each channel")
        return value

    def bytes(self, node: object, channels: bool = False) -> View:
        """Return the operand as a tensor on a grid."""
        if isinstance(node, fx.Node) and not isinstance(self.values[node], View):
            raise Unread("its input is not int8")
        view = self.view(node, channels)
        if view.grid is None:
            raise Unread("its input is not int8")
        return view

    def floats(self, node: object) -> View:
        """Return the operand as a tensor of floats."""
        view = self.view(node)
        if view.grid is None:
            return view
        return self.compute(lazy(view), None)

    def take_in(self, value: Outside, same: bool = False) -> View:
        """Return a tensor of Python's in the program: a constant, or a slot that is filled at every call.

        It has no batch if it is a constant, or, where `same` allows that, the same for all samples.
        """
        shape = self.shapes.get(value.node)
        if not isinstance(shape, Shape) or shape.dtype not in (torch.float32, torch.bool):
            raise Unread("an operand is not a float32 tensor")
        if value.constant:
            return self._constant(value.node)
        if not shape.batched and not same:
            raise Unread("an operand has no batch in front")
        view = self.slot_view(value, shape, TRUTH if shape.dtype == torch.bool else None)
        if not shape.batched and shape.dims[:1] == (1,):  # in the place of the batch
            view = replace(view, shape=view.shape[1:], strides=view.strides[1:])
        return view

    def slot_view(self, value: Outside, shape: Shape, grid: Grid | None) -> View:
        """Return a view of a tensor that Python hands over."""
        known = next((found for found in self.imports.values() if found.node is value.node), None)
        if known is None:
            dtype: DType = "u8" if grid is not None else "f32"
            slot, same = self.new_slot(), not shape.batched
            buffer = Buffer(dtype=dtype, size=math.prod(shape.dims), space="slot", slot=slot, same=same)
            known = self.imports[slot] = Import(
                node=value.node,
                buffer=buffer,
                dims=shape.dims,
                dtype=shape.dtype,
                channels_last=len(shape.dims) == 3 and shape.dims[0] > _FEW and not same,
                same=same,
            )
        strides = torch.empty(shape.dims, device="meta").stride()
        if known.channels_last:
            channels, _, width = shape.dims
            strides = (1, width * channels, channels)
        return View(buffer=known.buffer, shape=shape.dims, strides=strides, grid=grid, level=value.level)

    def new_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def missing(self) -> Buffer:
        """Return the word that tells that an id has no row."""
        if self.flag is None:
            self.flag = Buffer(dtype="u8", size=8, space="slot", slot=self.new_slot(), same=True)
        return self.flag

    def _constant(self, node: fx.Node) -> View:
        found = self.constant_of(node)
        return self.tensor_constant(found.float() if getattr(found, "dtype", None) == torch.bool else found)

    def tensor_constant(self, tensor: object) -> View:
        """Return a parameter, or what follows from parameters, as a constant of the program."""
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise Unread("a parameter is not float32 on the CPU")
        offset = self.constants.put(tensor.detach().contiguous().numpy())
        buffer = Buffer(dtype="f32", size=tensor.numel(), space="constant", offset=offset)
        return View(buffer=buffer, shape=tuple(tensor.shape), strides=tensor.contiguous().stride())

    def constant_of(self, node: object) -> Any:
        """Return the value of an argument that does not depend on the inputs."""
        if not isinstance(node, fx.Node):
            return node
        if node.op == "get_attr":
            return get_attr(self.region, str(node.target))
        known = node.all_input_nodes or node.target in _CREATORS
        if node.op not in ("call_function", "call_method") or not known:
            raise Unread("an operand is computed at run time")
        with torch.no_grad():
            args = fx.node.map_arg(node.args, self.constant_of)
            kwargs = fx.node.map_arg(node.kwargs, self.constant_of)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)

    # results

    def compute(
        self,
        value: Lazy,
        node: fx.Node | None,
        grid: Grid | None = None,
        out: View | None = None,
        border: bool = True,
    ) -> View:
        """Emit the kernel of an expression: to floats, or to a grid; `node` is whose output it is."""
        if out is None:
            like = next((view for view in value.operands if view.shape == value.shape), None)
            out = self.output(node, value.shape, grid, like, value.level)
        views = [*value.operands, out]
        spread = [broadcast(view, value.shape) for view in value.operands]
        if any(view is None for view in spread):
            raise Unread("its operands do not broadcast sample by sample")
        operands = [view for view in spread if view is not None]
        scaled = [tuple(step * view.buffer.element for step in view.strides) for view in (*operands, out)]
        order = axes_by_stride(out)
        dims, strides = collapse(value.shape, scaled, order)
        dims = (1,) * (2 - len(dims)) + dims
        strides = [(0,) * (len(dims) - len(each) - (not each)) + (each or (out.buffer.element,)) for each in strides]
        same = len(operands) == 1 and value.expr == ("in", 0) and operands[0].grid == out.grid
        if not same and any(view.grid is not None and view.grid.channels for view in (*operands, out)):
            raise Unread("the kernel has one scale for all channels")
        spec = Elementwise(
            dims=dims,
            operands=tuple(
                Access(dtype=view.dtype, strides=steps) for view, steps in zip(operands, strides[:-1], strict=True)
            ),
            out=Access(dtype=out.dtype, strides=strides[-1]),
            expr=value.expr,
            low=grid.low if grid is not None else 0,
            high=grid.high if grid is not None else 255,
            nan=grid.nan if grid is not None else 0,
            copies=same,
        )
        grids = [None if view.grid is None else (view.grid.scale, view.grid.zero) for view in operands]
        params = elementwise.params(
            grids, None if out.grid is None else (out.grid.scale, out.grid.zero), list(value.constants)
        )
        self.emit(
            elementwise.emit,
            spec,
            (*map(pointer, operands), self.constant(params), pointer(out)),
            views[:-1],
            out,
            rows=dims[0],
            label=f"elementwise {shown(value.expr)} {'x'.join(map(str, value.shape))}",
            border=border,
        )
        return out

    def output(
        self, node: fx.Node | None, shape: tuple[int, ...], grid: Grid | None, like: View | None, level: int
    ) -> View:
        """Return a new tensor for the output of a node.

        It is an image if its readers want one, else it has the order of another.
        """
        dtype: DType = "f32" if grid is None else "u8"
        level += level % 2
        pad = self.border(node) if node is not None and grid is not None else None
        if len(shape) > 2 and (pad is not None or (like is not None and is_image(like))):
            return image(dtype, shape, pad or (), grid, level)
        if len(shape) == 2 and pad is not None:
            channels, width = shape
            made = image(dtype, (channels, 1, width), pad, grid, level)
            return drop_height(made)
        order = axes_by_stride(like) if like is not None else tuple(range(len(shape)))
        return dense(dtype, shape, order, grid, level)

    def border(self, node: fx.Node) -> tuple[int, ...] | None:
        """Return the border that convolutions and paddings want around a tensor; None if none reads it."""
        from fxquant.engines.native.groups import padding_of
        from fxquant.engines.native.read_moves import frame_of

        wanted: tuple[int, ...] | None = None
        found = self.shapes.get(node)
        count = max(2, len(found.dims) - 1) if isinstance(found, Shape) else 0
        for user in readers(node):
            pad = padding_of(self, user) or frame_of(self, user)
            if pad is not None and len(pad) == 2 * count:
                wanted = tuple(map(max, wanted or pad[:count], pad[:count], pad[count:]))
        return wanted

    def constant(self, array: NDArray[np.generic]) -> Pointer:
        return Pointer(offset=self.constants.put(array))

    def emit(
        self,
        emit: Emit,
        spec: object,
        pointers: tuple[Pointer, ...],
        reads: list[View],
        out: View,
        *,
        rows: int = 1,
        grain: int = 1,
        blocks: int = 1,
        label: str = "",
        macs: int = 0,
        single: bool = False,
        border: bool = True,
    ) -> None:
        """Add an op, and another that writes the border of its output."""
        level = out.level
        assert levels(reads) <= level and level % 2 == 0, "the output is on a level before its operands"
        buffers = tuple(view.buffer for view in reads)
        for buffer in (*buffers, out.buffer):
            buffer.levels.add(level)
        self.ops.append(
            Op(
                emit=emit,
                spec=spec,
                pointers=pointers,
                reads=buffers,
                writes=out.buffer,
                level=level,
                rows=rows,
                grain=grain,
                blocks=blocks,
                label=label,
                macs=macs,
                single=single,
            )
        )
        if border and any(out.buffer.pad):
            self._fill_border(out, level)

    def _fill_border(self, out: View, level: int) -> None:
        assert out.grid is not None
        buffer = out.buffer
        spec = border_of(buffer)
        byte = self.constant(np.full(64, out.grid.zero, np.uint8))
        pointers = (byte, Pointer(buffer=buffer))
        self.ops.append(
            Op(
                emit=fill_border,
                spec=spec,
                pointers=pointers,
                reads=(buffer,),
                writes=buffer,
                level=level,
                label=f"border {'x'.join(map(str, buffer.image))}",
            )
        )

    def is_fixed(self, node: fx.Node) -> bool:
        """Tell whether a node is known to give the same at every call."""
        value = self.values.get(node)
        return isinstance(value, Outside) and value.constant

    def is_constant(self, node: fx.Node) -> bool:
        """Tell whether a node computes something of parameters alone, without a batch."""
        shape, operands = self.shapes.get(node), [self.values[operand] for operand in node.all_input_nodes]
        fixed = all(isinstance(value, Outside) and value.constant for value in operands)
        known = bool(operands) or node.target in _CREATORS
        return known and fixed and isinstance(shape, Shape) and not shape.batched and node.op != "call_module"


def readers(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that read a tensor, also behind a dequantize."""
    from fxquant.graph import torch_compat

    found: list[fx.Node] = []
    for user in node.users:
        between = (torch_compat.QUANTIZE, torch_compat.QUANTIZE_CHANNEL, *torch_compat.DEQUANTIZE_OPS)
        found += readers(user) if user.target in between else [user]
    return found
