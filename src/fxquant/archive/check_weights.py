"""Integer weights and grids of a file: rank, dtype, range and the shapes of all that goes with them.

All of it is known to be right before a kernel reads it.

linear [out, in]      conv [out, in / groups, ...]      transposed conv [in, out / groups, ...]      embedding [n, d]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fxquant.config.spec import Spec
from fxquant.errors import ArchiveError
from fxquant.numerics.grid import Grid, why_off
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.table import OPS


def check_weights(tree: nn.Module) -> None:
    """Raise an ArchiveError that names the first weight or grid whose tensors do not fit each other."""
    for path, module in tree.named_modules():
        if isinstance(module, Grid):
            try:
                _check_grid(module)
            except ArchiveError as error:
                raise ArchiveError(f"the grid {path!r}: {error}") from error
        if isinstance(module, QuantizedWeight):
            try:
                _check(module)
            except ArchiveError as error:
                raise ArchiveError(f"the weight {path!r}: {error}") from error


def _check(holder: QuantizedWeight) -> None:
    spec, weight = holder.spec, holder._buffers.get("weight")
    op = OPS.by_kind.get(holder.kind)
    if op is None or not op.has_weight:
        raise ArchiveError(f"the kind {holder.kind[:40]!r} has no weight.")
    if weight is not None and holder.tail is not None:
        if weight.dtype != torch.uint8 or spec.bits > 4 or weight.shape[1:] != (-(-math.prod(holder.tail) // 2),):
            raise ArchiveError(f"{tuple(weight.shape)} bytes are no rows of {holder.tail}, two to a byte.")
        weight = holder.integers
    if weight is None or weight.dim() != op.weight_rank or not weight.numel():
        shape = None if weight is None else tuple(weight.shape)
        raise ArchiveError(f"a {holder.kind} has a weight of {op.weight_rank} dimensions, not the shape {shape}.")
    if weight.dtype != spec.dtype:
        raise ArchiveError(f"it is {weight.dtype}, but its spec says {spec.dtype}.")
    _check_range("weight", weight, spec)
    shape = _scales_of(weight, spec)
    scale, zero = holder._buffers.get("weight_scale"), holder._buffers.get("weight_zero_point")
    check_scale("weight_scale", scale, shape)
    if zero is not None:
        if tuple(zero.shape) != shape:
            raise ArchiveError(f"its zero points have the shape {tuple(zero.shape)}, not {shape}.")
        _check_range("weight_zero_point", zero, spec)
    _check_bias(holder, weight)


def _check_grid(grid: Grid) -> None:
    scale, zero = grid._buffers.get("scale"), grid._buffers.get("zero_point")
    info = torch.iinfo(grid.dtype)
    if not info.min <= grid.quant_min < grid.quant_max <= info.max:
        raise ArchiveError(f"its integers from {grid.quant_min} to {grid.quant_max} are not those of {grid.dtype}.")
    for name, tensor in (("scale", scale), ("zero_point", zero)):
        if tensor is None or not tensor.numel() or tensor.dim() > (0 if grid.axis is None else 1):
            numbers = "one number" if grid.axis is None else "one number for each channel"
            raise ArchiveError(f"its {name} is not {numbers}.")
    assert scale is not None and zero is not None
    if scale.shape != zero.shape:
        raise ArchiveError(f"it has scales of the shape {tuple(scale.shape)} and zero points {tuple(zero.shape)}.")
    if bool((scale == scale.reshape(-1)[0]).all()) and why_off(scale) is not None:
        return
    check_scale("scale", scale, tuple(scale.shape))
    if zero.is_floating_point() or not grid.quant_min <= int(zero.min()) <= int(zero.max()) <= grid.quant_max:
        raise ArchiveError(f"its zero point {zero.tolist()} is outside of {grid.quant_min} to {grid.quant_max}.")


def _scales_of(weight: Tensor, spec: Spec) -> tuple[int, ...]:
    """Return the shape of the scales of a weight."""
    if spec.granularity == "per_tensor":
        return ()
    if spec.granularity == "per_channel":
        if spec.axis >= weight.dim():
            raise ArchiveError(f"its spec has the axis {spec.axis}, but it has {weight.dim()} dimensions.")
        return (weight.shape[spec.axis],)
    size = spec.group_size or 1
    if weight.shape[-1] % size:
        raise ArchiveError(f"its rows of {weight.shape[-1]} do not make groups of {size}.")
    return (*weight.shape[:-1], weight.shape[-1] // size)


def check_scale(name: str, scale: Tensor | None, shape: tuple[int, ...] | None) -> None:
    """Raise an ArchiveError unless a tensor holds scales, of a shape if one is given."""
    if scale is None or scale.dtype != torch.float32:
        raise ArchiveError(f"{name} is no tensor of float32.")
    if shape is not None and tuple(scale.shape) != shape and not (shape == () and tuple(scale.shape) == (1,)):
        raise ArchiveError(f"{name} has the shape {tuple(scale.shape)}, not {shape}.")
    if not bool((scale > 0).all()) or not bool(scale.isfinite().all()):
        raise ArchiveError(f"{name} holds a scale that is not above 0 and finite.")


def _check_range(name: str, values: Tensor, spec: Spec) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ArchiveError(f"{name} is {values.dtype}, not whole numbers.")
    low, high = (int(end) for end in torch.aminmax(values.to(torch.int64)))
    if low < spec.quant_min or high > spec.quant_max:
        raise ArchiveError(f"{name} has values from {low} to {high}, outside of {spec.quant_min} to {spec.quant_max}.")


def _check_bias(holder: QuantizedWeight, weight: Tensor) -> None:
    bias = holder._buffers.get("bias")
    if bias is None:
        return
    axis = OPS.by_kind[holder.kind].channel_axis
    channels = weight.shape[axis]
    whole = bias.numel() % channels == 0 if axis else bias.numel() == channels  # in front are the groups
    if bias.dim() != 1 or not whole or not bias.numel() or bias.is_complex():
        raise ArchiveError(f"it has a bias of the shape {tuple(bias.shape)} for {channels} channels.")
    scale, zero = holder._buffers.get("bias_scale"), holder._buffers.get("bias_zero_point")
    if scale is not None:
        check_scale("bias_scale", scale, None)
        if scale.numel() not in (1, bias.numel()) or scale.dim() > 1:
            raise ArchiveError(f"it has a bias_scale of the shape {tuple(scale.shape)} for {bias.numel()} biases.")
        if zero is not None and zero.shape != scale.shape:
            raise ArchiveError(f"it has a bias_zero_point of the shape {tuple(zero.shape)}, not {tuple(scale.shape)}.")
    elif not bias.is_floating_point():
        raise ArchiveError(f"it has a bias of {bias.dtype} without a scale.")
