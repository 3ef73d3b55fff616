"""Weighted ops on int8 weights: the module becomes a holder of integer buffers, the call becomes functional.

call_module conv (x)  ->  F.conv2d(x, dequantize(get_attr conv.weight), get_attr conv.bias, stride, ...)
call_module emb (i)   ->  dequantize of the rows that were looked up, not of the whole table
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fxquant.config.spec import Spec
from fxquant.graph import torch_compat
from fxquant.graph.hooks import move_hooks
from fxquant.graph.nibbles import pack
from fxquant.graph.notes import Note, note_of
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region
from fxquant.numerics.affine import quantize
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.quantized_weight import QuantizedWeight, scale_of
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant
from fxquant.numerics.weights.weight_range import find_weight_qparams
from fxquant.ops.table import Op, OpTable
from fxquant.passes.convert_bias import convert_bias, input_scale, with_room


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One call of a weighted module, looked up before the module gives way to its holder."""

    node: fx.Node
    path: str
    module: nn.Module
    op: Op
    note: Note
    input_scale: Tensor | None  # of a static int8 input, see numerics/grid.py

    @property
    def weight(self) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def spec(self) -> Spec:
        assert self.note.weight is not None
        return self.note.weight

    @property
    def key(self) -> tuple[int, Spec]:
        """The same for calls whose weights are one."""
        return id(self.weight), self.spec


# (id of a float weight, spec) -> the weight itself, so that its id stays its own, and (integers, scale, zero point)
Tied = dict[tuple[int, Spec], tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]


def convert_weights(region: Region, ops: OpTable, tied: Tied | None = None, waiting: bool = False) -> Region:
    """Put a holder of int8 buffers in place of every quantized module and rewrite its calls.

    Calls of one module share a holder; tied weights share their integer tensors, across regions too if all are given
    the same `tied`. `waiting` tells that scales are not known yet.
    """
    calls = list(_calls(region, ops, waiting))
    holders: dict[str, QuantizedWeight] = {}
    tied = {} if tied is None else tied
    for call in calls:
        if call.path not in holders:
            if call.key not in tied:
                tied[call.key] = call.weight, _quantize(call)
            holders[call.path] = _hold(call, *tied[call.key][1])
    for path, holder in holders.items():
        _keep_rest(region.get_submodule(path), holder)
        set_submodule(region, path, holder)
    weights: dict[str, fx.Node] = {}
    for call in calls:
        with region.graph.inserting_before(call.node):
            result = _rewrite(region.graph, call, holders[call.path], weights)
        result.meta.update(call.node.meta)
        result.meta["note"] = dataclasses.replace(call.note, weight=holders[call.path].spec)
        replace_node(region.graph, call.node, result)
    return region


def replace_node(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    """Put `new` in the place of `old`, under its name, so that notes and reports go on naming it."""
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    new.name = old.name


def _calls(region: Region, ops: OpTable, waiting: bool) -> Iterator[_Call]:
    for node in region.graph.nodes:
        note, op = note_of(node), ops.of_node(node, region)
        if note is not None and note.weight is not None and op is not None:
            path = str(node.target)
            module = region.get_submodule(path)
            x_scale = input_scale(region, node, op, waiting)
            yield _Call(node=node, path=path, module=module, op=op, note=note, input_scale=x_scale)


def _rewrite(graph: fx.Graph, call: _Call, holder: QuantizedWeight, weights: dict[str, fx.Node]) -> fx.Node:
    dtype = call.module.weight.dtype
    assert isinstance(dtype, torch.dtype)
    if call.op.is_lookup:
        rows = _lookup(graph, call.node, call.path, holder, dtype)
        return pool(graph, call.node, call.module, rows) if call.op.pools else rows
    if call.path not in weights:
        weights[call.path] = dequantize_weight(graph, call.path, holder, dtype)
    bias = graph.get_attr(f"{call.path}.bias") if holder.bias is not None else None
    if bias is not None and "bias_scale" in holder._buffers:
        bias = dequantize_bias(graph, call.path, bias, dtype)
    return functional_call(graph, call.node, call.op, call.module, weights[call.path], bias)


def _quantize(call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    """(integers as they are stored, scale, zero point) of the weight of a call."""
    module, weight, spec = call.module, call.weight, call.spec
    if type(module) is QatBlock:
        scale, zero_point = module.weight_fq.compute_qparams(weight)
    else:
        scale, zero_point = find_weight_qparams(weight, spec, f"{call.path}.weight")
    if call.note.bias == "int32":
        scale = with_room(scale, getattr(module, "bias", None), spec, call.input_scale)
    q = quantize(_in_order(weight).detach().float(), scale, zero_point, spec)
    return pack(q) if _is_packed(spec) else q, scale_of(scale, weight.dtype), zero_point


def _is_packed(spec: Spec) -> bool:
    return spec.bits <= 4


def _hold(call: _Call, q: Tensor, scale: Tensor, zero: Tensor) -> QuantizedWeight:
    spec, bias_spec, bias = call.spec, call.note.bias, getattr(call.module, "bias", None)
    tail = tuple(call.weight.shape[1:]) if _is_packed(spec) else None
    holder = QuantizedWeight(call.op.kind, spec.stored(), tail)
    holder.__dict__["shell"] = shell_of(call.module)
    move_hooks(holder.shell, holder)
    holder.register_buffer("weight", q)
    holder.put_scale(scale)
    holder.register_buffer("weight_zero_point", None if spec.symmetric and spec.signed else zero)
    for name, tensor in convert_bias(bias, bias_spec, scale, spec, call.input_scale).items():
        holder.register_buffer(name, tensor)
    return holder


def _in_order(weight: Tensor) -> Tensor:
    """Kernels read integers in order, and the weight of a lifted `x @ w` is a transposed view.

    A model with channels last stays one: its weights decide how the results of its convolutions lie.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    is_last = last is not None and weight.is_contiguous(memory_format=last)
    return weight if is_last else weight.contiguous()


def shell_of(module: nn.Module) -> nn.Module:
    """Return the module without its tensors and children."""
    shell = module.plain() if type(module) is QatBlock else copy.copy(module)
    tensors = {n: None if p is None else nn.Parameter(p.to("meta"), False) for n, p in module._parameters.items()}
    shell.__dict__.update(_parameters=tensors, _buffers={}, _modules={})
    return shell


def _keep_rest(module: nn.Module, holder: QuantizedWeight) -> None:
    """Keep what else a user's module of this kind holds: children, and state that other nodes read."""
    for name, child in module._modules.items():
        if not isinstance(child, WeightFakeQuant):
            holder.add_module(name, child)
    for name, parameter in module._parameters.items():
        if name not in (*holder._buffers, *holder._parameters):
            holder.register_parameter(name, parameter)
    for name, buffer in module._buffers.items():
        if name not in holder._buffers:
            holder.register_buffer(name, buffer, persistent=name not in module._non_persistent_buffers_set)


def dequantize_weight(graph: fx.Graph, path: str, holder: QuantizedWeight, dtype: torch.dtype) -> fx.Node:
    spec = holder.spec
    weight, scale = _unpacked(graph, graph.get_attr(f"{path}.weight"), holder), graph.get_attr(f"{path}.weight_scale")
    zero = graph.get_attr(f"{path}.weight_zero_point") if holder.weight_zero_point is not None else None
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    out: dict[str, Any] = {} if dtype == torch.float32 else {"out_dtype": dtype}
    if spec.granularity == "per_group":
        size = spec.group_size
        return graph.call_function(torch_compat.DEQUANTIZE_GROUP, (weight, scale, zero, *grid, size, dtype))
    if spec.granularity == "per_channel":
        return graph.call_function(torch_compat.DEQUANTIZE_CHANNEL, (weight, scale, zero, spec.axis, *grid), out)
    return graph.call_function(torch_compat.DEQUANTIZE, (weight, scale, 0 if zero is None else zero, *grid), out)


def _unpacked(graph: fx.Graph, weight: fx.Node, holder: QuantizedWeight) -> fx.Node:
    if holder.tail is None:
        return weight
    return graph.call_function(torch_compat.UNPACK, (weight, list(holder.tail), holder.spec.signed))


def dequantize_bias(graph: fx.Graph, path: str, bias: fx.Node, dtype: torch.dtype) -> fx.Node:
    scale, zero = graph.get_attr(f"{path}.bias_scale"), graph.get_attr(f"{path}.bias_zero_point")
    return graph.call_function(dequantize_rows, (bias, scale, zero, None, dtype))


def functional_call(
    graph: fx.Graph, node: fx.Node, op: Op, module: nn.Module, weight: fx.Node, bias: fx.Node | None
) -> fx.Node:
    """Return the call of a weighted module in its functional form, on a weight and bias that are nodes."""
    assert op.functional is not None
    x = node.args[0] if node.args else node.kwargs.get("input")
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        output_padding: Any = module.output_padding
        if len(node.args) > 1 or "output_size" in node.kwargs:
            output_padding = _output_padding(graph, node, module)
        tail = (module.stride, module.padding, output_padding, module.groups, module.dilation)
        return graph.call_function(op.functional, (x, weight, bias, *tail))
    if isinstance(module, nn.modules.conv._ConvNd):
        padding: Any = module.padding
        if module.padding_mode != "zeros":
            x = graph.call_function(
                F.pad, (x, list(module._reversed_padding_repeated_twice)), {"mode": module.padding_mode}
            )
            padding = (0,) * len(module.kernel_size)
        return graph.call_function(
            op.functional, (x, weight, bias, module.stride, padding, module.dilation, module.groups)
        )
    operands = iter((*node.args, *(node.kwargs[name] for name in op.params if name in node.kwargs)))
    values = {op.weight: weight, "bias": bias}
    args = (
        next(operands) if index in op.operands else values[name] if name in values else getattr(module, name)
        for index, name in enumerate(op.params)
    )
    return graph.call_function(op.functional, tuple(args))


def _output_padding(graph: fx.Graph, node: fx.Node, module: nn.modules.conv._ConvTransposeNd) -> fx.Node:
    size = node.args[1] if len(node.args) > 1 else node.kwargs["output_size"]
    settings = (module.stride, module.padding, module.kernel_size, module.dilation)
    return graph.call_function(output_padding, (node.args[0], size, *settings))


def output_padding(
    x: Tensor,
    output_size: Sequence[int],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the output padding with which a transposed convolution gives `output_size`."""
    dims = len(kernel_size)
    sizes = tuple(output_size)[-dims:]
    smallest = [
        (x.shape[-dims + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel_size[i] - 1) + 1
        for i in range(dims)
    ]
    return tuple(size - least for size, least in zip(sizes, smallest, strict=True))


def _lookup(graph: fx.Graph, node: fx.Node, path: str, holder: QuantizedWeight, dtype: torch.dtype) -> fx.Node:
    """Look up integer rows, then dequantize only these."""
    index = node.args[0] if node.args else node.kwargs["input"]
    spec = holder.spec
    grid = (spec.quant_min, spec.quant_max, spec.dtype)
    rows = graph.call_function(F.embedding, (index, graph.get_attr(f"{path}.weight")))
    rows = _unpacked(graph, rows, holder)
    if spec.granularity == "per_tensor":
        per_tensor = graph.get_attr(f"{path}.weight_scale")
        offset = 0 if holder.weight_zero_point is None else graph.get_attr(f"{path}.weight_zero_point")
        return graph.call_function(torch_compat.DEQUANTIZE, (rows, per_tensor, offset, *grid), {"out_dtype": dtype})
    scale = graph.call_function(F.embedding, (index, _as_rows(graph, path, "weight_scale", holder)))
    zero = None
    if holder.weight_zero_point is not None:
        zero = graph.call_function(F.embedding, (index, _as_rows(graph, path, "weight_zero_point", holder)))
    return graph.call_function(dequantize_rows, (rows, scale, zero, spec.group_size, dtype))


def pool(graph: fx.Graph, node: fx.Node, module: nn.Module, rows: fx.Node) -> fx.Node:
    """Return the bags of an EmbeddingBag's call, from the rows that it looks up."""
    given = dict(zip(("input", "offsets", "per_sample_weights"), node.args, strict=False))
    given.update(node.kwargs)
    settings = (module.mode, module.include_last_offset, module.padding_idx)
    weights = given.get("per_sample_weights")
    return graph.call_function(pool_rows, (rows, given["input"], given.get("offsets"), weights, *settings))  # type: ignore[arg-type]


def pool_rows(
    rows: Tensor,
    index: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    mode: str,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Tensor:
    """Return what F.embedding_bag makes of rows that were looked up already, one for each index."""
    if offsets is None:  # as many in each bag: plain ops, which runtimes have
        return _pool_equal(rows, index, weights, mode, padding_idx)
    count = index.numel()
    table = rows.reshape(count, rows.shape[-1])
    places = torch.arange(count, dtype=index.dtype, device=index.device).reshape(index.shape)
    if padding_idx is not None:  # a row of its own, which no bag counts
        table = torch.cat((table, table.new_zeros(1, table.shape[1])))
        places = torch.where(index == padding_idx, count, places)
    return F.embedding_bag(
        places,
        table,
        offsets,
        mode=mode,
        per_sample_weights=weights,
        include_last_offset=include_last_offset,
        padding_idx=None if padding_idx is None else count,
    )


def _pool_equal(rows: Tensor, index: Tensor, weights: Tensor | None, mode: str, padding_idx: int | None) -> Tensor:
    values = rows if weights is None else rows * weights.unsqueeze(-1)
    counted = None if padding_idx is None else (index != padding_idx).unsqueeze(-1)
    if mode == "max":
        if counted is None:
            return values.amax(1)
        largest = values.masked_fill(~counted, torch.finfo(values.dtype).min).amax(1)
        return largest.masked_fill(~counted.any(1), 0.0)
    total = (values if counted is None else values.masked_fill(~counted, 0.0)).sum(1)
    if mode == "sum":
        return total
    return total / (index.shape[1] if counted is None else counted.sum(1).clamp(min=1))


def _as_rows(graph: fx.Graph, path: str, name: str, holder: QuantizedWeight) -> fx.Node:
    values = graph.get_attr(f"{path}.{name}")
    return values if holder.spec.granularity == "per_group" else graph.call_method("unsqueeze", (values, -1))


def dequantize_rows(rows: Tensor, scale: Tensor, zero: Tensor | None, group: int | None, dtype: torch.dtype) -> Tensor:
    """(rows - zero) * scale, where each row has one scale, or one per `group` columns."""
    values = rows.to(torch.float32)
    if group is not None:
        values = values.unflatten(-1, (-1, group))
        scale, zero = scale.unsqueeze(-1), None if zero is None else zero.unsqueeze(-1)
    if zero is not None:
        values = values - zero
    values = values * scale
    return (values.flatten(-2) if group is not None else values).to(dtype)
