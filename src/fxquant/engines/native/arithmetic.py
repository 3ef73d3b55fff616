"""The numbers of a weighted op: what turns its sums into real values, and those into its output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from fxquant.engines.native.activations import SMOOTH, Act, fit
from fxquant.engines.native.finish import GREATEST_LANDED, LEAST_LANDED, MOST_LANDED, MOST_MAGIC, Finish, header
from fxquant.engines.native.groups import Group
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View
from fxquant.engines.native.words import fit_words
from fxquant.engines.read_qdq import weight_holder
from fxquant.numerics.weights.quantized_weight import QuantizedWeight

Doubles = NDArray[np.float64]
_LARGEST = float(2**29)
_NOTHING = 1e-3  # steps
_FEW = 2048  # outputs of a sample
_EPSILON, _MOST_LOST = 2.0**-24, 0.05  # of float32; steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """The arithmetic of a weighted op, in doubles: weights [channels, kz * ky, kx, inputs], scale and bias."""

    weight: NDArray[np.int8]
    scale: Doubles
    plain: Doubles  # the bias of the op
    zero: int  # what is left of the zero point of the activations

    @property
    def bias(self) -> Doubles:
        """With what the zero point adds to the sums taken back."""
        return self.plain - self.offset

    @property
    def offset(self) -> Doubles:
        """What the zero point adds to the sums."""
        made: Doubles = self.scale * self.zero * self.weight.astype(np.int64).sum((1, 2, 3))
        return made


def largest(weight: NDArray[np.int8]) -> int:
    """Return the largest size of a weight's integers."""
    return int(np.abs(weight.astype(np.int16)).max(initial=0))


def with_weight(made: Numbers, weight: NDArray[np.int8]) -> Numbers:
    """Return the same op with some of its taps."""
    return replace(made, weight=weight)


def check_weight(holder: QuantizedWeight, weight: object, axis: int) -> None:
    """Raise unless kernels take the weight that a node stands for."""
    spec = holder.spec
    fits = spec.granularity == "per_tensor" or (spec.granularity == "per_channel" and spec.axis == axis)
    plain = isinstance(weight, fx.Node) and not weight.kwargs
    if not fits or spec.dtype != torch.int8 or holder.weight_zero_point is not None or not plain:
        raise Unread("the kernel takes symmetric int8 weights per output channel")
    if holder.stored.device.type != "cpu":
        raise Unread("its weight is not on the CPU")


def numbers(reader: Reader, group: Group, x: Grid, axis: int = 0) -> Numbers:
    """Return the integers of a weight with what turns their sums into real values."""
    weight = group.node.args[1]
    holder = weight_holder(reader.region, weight)
    assert holder is not None
    check_weight(holder, weight, axis)
    q = holder.integers.detach().numpy()
    q = q.reshape(*q.shape[:2], -1, q.shape[-1]) if q.ndim > 2 else q[:, :, None, None]
    q = np.ascontiguousarray((q if axis == 0 else q.swapaxes(0, 1)).transpose(0, 2, 3, 1))
    bias_node = group.node.args[2] if len(group.node.args) > 2 else None
    bias = reader.constant_of(bias_node) if bias_node is not None else None
    start = np.zeros(len(q)) if bias is None else bias.detach().to(torch.float64).numpy()
    scale = holder.weight_scale.detach().to(torch.float64).numpy().reshape(-1) * x.scale
    scale = np.broadcast_to(scale, len(q)).copy()
    if x.channels:
        if axis or q.shape[3] != 1 or len(q) % len(x.channels):
            raise Unread("its input has a scale for each channel, and its sums run over several")
        scale *= np.repeat(np.array(x.channels), len(q) // len(x.channels))
    if not (np.isfinite(scale).all() and np.isfinite(start).all()):
        raise Unread("its scales or biases are not finite")
    return Numbers(weight=q, scale=scale, plain=start, zero=x.zero - reader.machine.shift)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How sums become the output: the code, what it reads, and scale and bias of each channel."""

    spec: Finish
    header: NDArray[np.float32]
    scale: Doubles
    bias: Doubles


def ending(reader: Reader, group: Group, made: Numbers, other: View | None, out: View) -> Ending:
    """Return the end of a kernel; see finish.py."""
    act, scale, bias, grid = group.act, made.scale, made.bias, out.grid
    if grid is None:
        _check_offset(made, float(np.abs(made.plain).max(initial=0.0)) or math.inf)
        kind = "" if other is None else "f32"
        return Ending(spec=Finish(out="f32", other=kind, act=act), header=header(), scale=scale, bias=bias)  # type: ignore[arg-type]
    low, high = grid.low, grid.high
    if act is not None and act.kind in ("relu", "clamp"):
        limits = act.args if act.kind == "clamp" else (0.0, math.inf)
        low, high = (_step(limit, grid) for limit in limits)
        act = None
    if grid.channels:
        return _per_channel(reader.machine, made, other, grid, act, (low, high))
    table = words = None
    large = math.prod(out.shape) > _FEW  # below, exact curves cost next to nothing
    if act is not None and act.kind in SMOOTH and large and reader.machine.triple.startswith("x86"):
        words = fit_words(act, grid.scale, grid.zero) if reader.machine.words else None
        table = fit(act, grid.scale, grid.zero, reader.machine.pieces) if words is None else words.table
    unit = grid.scale if act is None else 1.0 if words is None else 1.0 / words.factor
    lift = grid.zero if act is None else 0.0 if words is None else -words.centre * words.factor
    rest = 0.0 if other is None or other.grid is None else other.grid.scale / unit
    lift -= 0.0 if other is None or other.grid is None else rest * other.grid.zero
    sums = np.abs(made.weight.astype(np.int64)).sum((1, 2, 3)) * 255
    largest = ((sums * np.abs(scale) + np.abs(bias)).max() + 255 * rest * unit) / min(unit, grid.scale) + abs(lift)
    landed = act is None and other is None and _lands(reader.machine, scale / unit, sums, largest)
    magic = landed or bool(sums.max() < MOST_MAGIC and scale.max() / grid.scale < 0.02)
    if not magic:
        _check_offset(made, min(unit, grid.scale))
    spec = Finish(
        out="u8",
        other="" if other is None else "u8",
        act=act,
        table=table is not None,
        words=words is not None,
        low=low,
        high=high,
        magic=magic,
        landed=landed,
        bounded=bool(largest > _LARGEST),
    )
    head = header(rest, 1.0 / grid.scale, grid.zero, table)
    return Ending(spec=spec, header=head, scale=scale / unit, bias=bias / unit + lift)


def _check_offset(made: Numbers, unit: Doubles | float) -> None:
    """Raise where what the zero point adds to the sums is so large that float32 loses a part of `unit` beside it.

    That is a step of the output, or the bias, which then is all that some inputs give.
    """
    if (np.abs(made.offset) / unit).max() * _EPSILON > _MOST_LOST:
        raise Unread("what the zero point of its input adds to its sums is too large to be taken back in float32")


def _lands(machine: Machine, scale: Doubles, sums: NDArray[np.int64], largest: float) -> bool:
    """Tell whether the sums of every channel, times its scale, can land on whole steps, or do not count."""
    if not machine.triple.startswith("x86") or sums.max() >= MOST_MAGIC or largest >= MOST_LANDED:
        return False
    found = (scale >= LEAST_LANDED) | (scale * sums < _NOTHING)
    return bool((found & (scale < GREATEST_LANDED)).all())


def _per_channel(
    machine: Machine, made: Numbers, other: View | None, grid: Grid, act: Act | None, limits: tuple[int, int]
) -> Ending:
    """Return the end of a kernel whose output has a scale for each channel: it multiplies per channel anyway."""
    if act is not None or other is not None:
        raise Unread("what comes before a scale for each channel has to be linear")
    unit = np.array(grid.channels)
    sums = np.abs(made.weight.astype(np.int64)).sum((1, 2, 3)) * 255
    largest = ((sums * np.abs(made.scale) + np.abs(made.bias)) / unit).max()
    landed = _lands(machine, made.scale / unit, sums, largest + abs(grid.zero))
    magic = landed or bool(sums.max() < MOST_MAGIC and (made.scale / unit).max() < 0.02)
    if not magic:
        _check_offset(made, unit)
    spec = Finish(low=limits[0], high=limits[1], magic=magic, landed=landed, bounded=bool(largest > _LARGEST))
    return Ending(spec=spec, header=header(), scale=made.scale / unit, bias=made.bias / unit + grid.zero)


def _step(value: float, grid: Grid) -> int:
    """Return the step of a grid that is nearest to a value."""
    found = {_step_of(value / scale, grid) for scale in grid.channels or (grid.scale,)}
    if len(found) > 1:
        raise Unread("it clamps at another step in each channel")
    return found.pop()


def _step_of(steps: float, grid: Grid) -> int:
    whole = steps if math.isinf(steps) else float(np.rint(steps)) + grid.zero
    return int(min(max(whole, grid.low), grid.high))
