"""Exported program of a QDQ graph -> Program: the state of the reading, and what every op needs of it.

Whole numbers are followed with their exact scales, as fractions. Nothing is rounded but where the graph quantizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, fx

from fxquant.errors import ConfigError
from fxquant.integers.arithmetic import MANTISSA
from fxquant.integers.program import Array, Port, Scales, Step
from fxquant.integers.scales import position_of, ratio_of
from fxquant.integers.values import Curve, Input, Whole

_WIDEST = 2**62
_EXTRA = 20  # places that sums of tensors on different scales keep below the coarsest of them


class Reader:
    """Collects steps and constants. `found` has what stands for each node that was read."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.found: dict[fx.Node, Any] = {}
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[Port] = []
        self.notes: list[str] = []
        self.places = places  # lines of the user's code, by the names of nodes

    def refuse(self, node: fx.Node, why: str) -> NoReturn:
        """There is no integer form of a node."""
        name = name_of(node)
        place = f" ({self.places[name]})" if name in self.places else ""
        raise ConfigError(
            f"{name!r}{place} has no integer form: {why}. Quantize what it reads and writes (a target such as 'xint8' "
            "or 'generic'), or cut the model before it."
        )

    def whole(self, node: fx.Node, value: object) -> Whole:
        """Return a value as whole numbers, or the reason why it is none."""
        if isinstance(value, Curve):
            self.refuse(node, f"it reads {name_of(value.nodes[-1])!r}, which is not rounded before")
        if isinstance(value, Input):
            self.refuse(node, f"it reads the argument {value.name!r} in float")
        if not isinstance(value, Whole):
            self.refuse(node, "it reads a tensor that is not quantized")
        return value

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def emit(self, op: str, node: fx.Node, inputs: Sequence[str], **rest: Any) -> str:
        """Add a step; the name of its tensor. Arrays among the arguments are constants."""
        output = self._unused(rest.pop("named", name_of(node)))
        constants = {role: value for role, value in rest.items() if isinstance(value, np.ndarray)}
        keys = {role: self.keep(f"{output}.{role}", value) for role, value in constants.items()}
        plain = {name: value for name, value in rest.items() if name not in constants}
        step = Step(op=op, inputs=tuple(inputs), output=output, constants=keys, attributes=plain, source=name_of(node))
        self.steps.append(step)
        return output

    def _unused(self, name: str) -> str:
        taken = {step.output for step in self.steps} | {port.tensor for port in self.inputs}
        unused, count = name, 0
        while unused in taken:
            count += 1
            unused = f"{name}_{count}"
        return unused

    def keep(self, name: str, array: Array) -> str:
        """Put a constant into the dump."""
        key = name
        count = 0
        while key in self.constants and not np.array_equal(self.constants[key], array):
            count += 1
            key = f"{name}_{count}"
        self.constants[key] = array
        return key

    def centered(self, node: fx.Node, value: Whole) -> Whole:
        """Without a zero point."""
        if value.zero == 0:
            return value
        name = self.emit("center", node, [value.tensor], zero=value.zero, named=f"{value.tensor}_centered")
        return Whole(tensor=name, scale=value.scale, axis=value.axis, zero=0, bound=value.bound)

    def rescaled(self, node: fx.Node, value: Whole, to: Fraction) -> Whole:
        """On one finer scale, without a zero point."""
        value = self.centered(node, value)
        ratio = ratio_of(value.scale, to)
        if ratio.is_one and value.axis is None:
            return value
        if not ratio.exact:
            self.note_multiplier()
        bound = int(value.bound * max(value.scale) / to) + 1
        name = self._requantize(node, value, to, low=None, high=None, zero_point=0, rounding="half_even", named=None)
        return Whole(tensor=name, scale=(to,), axis=None, zero=0, bound=bound)

    def aligned(self, node: fx.Node, values: Sequence[Whole]) -> list[Whole]:
        """Tensors on one common scale: the finest where all are powers of two apart, else one of 20 more places."""
        scales = [scale for value in values for scale in value.scale]
        finest = min(scales)
        apart = [position_of(scale / finest) for scale in scales]
        if None not in apart and all(value.axis is None for value in values):
            return [self.rescaled(node, value, finest) for value in values]
        return [self.rescaled(node, value, max(scales) / 2**_EXTRA) for value in values]

    def note_multiplier(self) -> None:
        self.note("scales are floats: M * 2^-n stands for their ratios, and a tie may round to the other side")

    def check_bound(self, node: fx.Node, bound: int, is_binary: bool) -> int:
        """Say where float32, which the simulation adds in, may be short of digits for the bits to be equal."""
        self.check_width(node, bound)
        if bound > 2**MANTISSA and is_binary:
            self.note(
                f"values of {name_of(node)!r} may reach {bound} steps, beyond the 2^24 that float32 counts: the "
                "simulation may round where integers do not"
            )
        return bound

    def check_width(self, node: fx.Node, bound: int) -> int:
        if bound >= _WIDEST:
            self.refuse(node, "its values may need more than 62 bits")
        return bound

    def quantize(self, node: fx.Node, value: object, grid: Port) -> Whole:
        """Return the integers of a grid that are nearest to a value."""
        if isinstance(value, Input):
            return self._enter(node, value, grid)
        if isinstance(value, Curve):
            name = self._table(node, value, grid)
        else:
            whole = self.centered(node, self.whole(node, value)) if not self._same(value, grid) else value
            assert isinstance(whole, Whole)
            name = whole.tensor if self._same(value, grid) else self._round(node, whole, grid)
        return on_grid(name, grid)

    def _same(self, value: object, grid: Port) -> bool:
        old = value.grid if isinstance(value, Whole) else None
        return old is not None and (old.scale, old.axis, old.zero_point, old.low, old.high) == (
            *(grid.scale, grid.axis, grid.zero_point),
            *(grid.low, grid.high),
        )

    def _round(self, node: fx.Node, whole: Whole, grid: Port) -> str:
        ends = {"low": grid.low, "high": grid.high, "zero_point": grid.zero_point, "rounding": grid.rounding}
        if grid.axis is not None:
            if whole.axis is None:
                scale = tuple(whole.scale[0] / to for to in grid.scale)
                whole = Whole(tensor=whole.tensor, scale=scale, axis=grid.axis, zero=0, bound=whole.bound)
            elif whole.axis == grid.axis:
                scale = tuple(old / to for old, to in zip(whole.scale, grid.scale, strict=True))
                whole = Whole(tensor=whole.tensor, scale=scale, axis=grid.axis, zero=0, bound=whole.bound)
            else:
                self.refuse(node, "its scales go along another axis than those of its input")
            return self._requantize(node, whole, Fraction(1), **ends, named=_quantized(node))
        return self._requantize(node, whole, grid.scale[0], **ends, named=_quantized(node))

    def _requantize(self, node: fx.Node, whole: Whole, to: Fraction, *, named: str | None, **ends: object) -> str:
        ratio = ratio_of(whole.scale, to, whole.bound)
        if not ratio.exact:
            self.note_multiplier()
        if whole.bound * max(ratio.multiplier) << max(0, -min(ratio.shift)) >= _WIDEST:
            self.refuse(node, "its scales are too far apart for 62 bits")
        return self.emit(
            "requantize",
            node,
            [whole.tensor],
            multiplier=np.array(ratio.multiplier, np.int64),
            shift=np.array(ratio.shift, np.int32),
            divisor=ratio.divisor,
            axis=whole.axis,
            named=named or f"{whole.tensor}_rescaled",
            **ends,
        )

    def _enter(self, node: fx.Node, value: Input, grid: Port) -> Whole:
        name = self._unused(f"{value.name}_q")
        shape = (None, *(size if isinstance(size, int) else None for size in node.meta["val"].shape[1:]))
        port = Port(**{**_fields(grid), "name": value.name, "tensor": name, "shape": shape})
        self.inputs.append(port)
        return on_grid(name, port)

    def _table(self, node: fx.Node, curve: Curve, grid: Port) -> str:
        """Return what the simulation gives for each integer of the source's grid."""
        old = curve.source.grid
        assert old is not None
        if old.axis is not None or grid.axis is not None:
            self.refuse(node, "a curve of a tensor with a scale for each channel")
        integers = torch.arange(old.low, old.high + 1)
        x = (integers.float() - old.zero_point) * torch.tensor(float(old.scale[0]), dtype=torch.float32)
        with torch.no_grad():
            for each in curve.nodes:
                args = [x if isinstance(arg, fx.Node) else arg for arg in each.args]
                x = each.target(*args, **each.kwargs)  # type: ignore[operator]
            rounded = node.target(x, *node.args[1:])  # type: ignore[operator]
        entries = rounded.numpy()
        return self.emit("table", node, [curve.source.tensor], table=entries, low=old.low, named=_quantized(node))


def on_grid(tensor: str, grid: Port) -> Whole:
    """Return the integers of a grid."""
    bound = max(abs(grid.low - grid.zero_point), abs(grid.high - grid.zero_point))
    return Whole(tensor=tensor, scale=grid.scale, axis=grid.axis, zero=grid.zero_point, bound=bound, grid=grid)


def _fields(port: Port) -> dict[str, Any]:
    return {name: getattr(port, name) for name in Port.__slots__}


def _quantized(node: fx.Node) -> str:
    source = node.args[0]
    return f"{name_of(source)}_q" if isinstance(source, fx.Node) else name_of(node)


def name_of(node: fx.Node) -> str:
    """Return the name of the node of the converted graph that a node of the exported one was made of."""
    origin = node.meta.get("from_node")
    return str(origin[0].name) if origin else node.name


def fractions(values: Tensor) -> Scales:
    """Floats as what they are exactly."""
    return tuple(Fraction(value) for value in values.double().reshape(-1).tolist())
