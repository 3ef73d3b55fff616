"""What hardware takes, as small values: grids of tensors, shapes, and what holds between positions of tensors.

A position is p where a scale is 2^-p. Of a kernel: i are those of its inputs, o that of its output, w and b those of
its weight and bias.

Each value has a `refuse`, which gives the reason against something, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fxquant.config.check_fields import check_fields
from fxquant.config.spec import Granularity, Rounding, ScaleKind, Spec
from fxquant.errors import ConfigError

Measure = Literal["cut", "bias", "bias_to_output", "spread", "sum", "product", "input", "output", "move"]
FORMULAS: dict[str, str] = {
    "cut": "w + i - o",
    "bias": "w + i - b",
    "bias_to_output": "o - b",
    "spread": "max(i) - min(i)",
    "sum": "min(i) - o",
    "product": "sum(i) - o",
    "input": "i",
    "output": "o",
    "move": "i - o",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grids:
    """The specs that a tensor may have. What is empty or None allows all; `ends` are the outermost whole numbers."""

    bits: tuple[int, ...] = ()
    signed: bool | None = None
    symmetric: bool | None = None
    granularity: tuple[Granularity, ...] = ()
    scale: ScaleKind | None = None
    rounding: Rounding | None = None
    ends: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _check_least(self, 1, *self.bits)
        if self.ends is not None and self.ends[0] >= self.ends[1]:
            raise ConfigError(f"Grids(ends={self.ends}): expected (lowest, highest).")

    def refuse(self, spec: Spec) -> str:
        """Tell why a spec is not allowed."""
        if self.bits and spec.bits not in self.bits:
            return f"{spec.bits} bits, not {' or '.join(map(str, self.bits))}"
        if self.signed is not None and spec.signed != self.signed:
            return f"{_sign(spec.signed)}, not {_sign(self.signed)}"
        if self.symmetric is not None and spec.symmetric != self.symmetric:
            return "a zero point, not symmetric" if self.symmetric else "symmetric, not with a zero point"
        if self.granularity and spec.granularity not in self.granularity:
            return f"{spec.granularity}, not {' or '.join(self.granularity)}"
        if self.scale is not None and spec.scale != self.scale:
            return f"{spec.scale} scales, not {self.scale}"
        if self.rounding is not None and spec.rounding != self.rounding:
            return f"rounding {spec.rounding}, not {self.rounding}"
        if self.ends is not None and not self.ends[0] <= spec.quant_min <= spec.quant_max <= self.ends[1]:
            return f"[{spec.quant_min}, {spec.quant_max}], not inside of [{self.ends[0]}, {self.ends[1]}]"
        return ""

    def __str__(self) -> str:
        parts = ["/".join(map(str, self.bits)) + " bits"] if self.bits else []
        parts += [] if self.signed is None else [_sign(self.signed)]
        parts += [] if self.symmetric is None else ["symmetric" if self.symmetric else "with a zero point"]
        parts += ["/".join(self.granularity)] if self.granularity else []
        parts += [] if self.scale is None else [f"{self.scale} scales"]
        parts += [] if self.rounding is None else [self.rounding]
        parts += [] if self.ends is None else [f"[{self.ends[0]}, {self.ends[1]}]"]
        return ", ".join(parts) or "any"


def _check_least(value: object, least: int, *numbers: int | None) -> None:
    """Raise for a limit that no tensor keeps."""
    for number in numbers:
        if number is not None and number < least:
            raise ConfigError(f"{type(value).__name__}: {number} is no limit; expected whole numbers from {least} on.")


def _sign(signed: bool) -> str:
    return "signed" if signed else "unsigned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """The shapes of activations that a kernel takes: how many axes, sizes of the first and the other axes, values."""

    ranks: tuple[int, ...] = ()
    batch: int | None = None
    size: int | None = None
    values: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _check_least(self, 1, self.batch, self.size, self.values)
        _check_least(self, 0, *self.ranks)

    def refuse(self, shape: Sequence[int]) -> str:
        """Tell why a tensor of this shape is not taken."""
        if self.ranks and len(shape) not in self.ranks:
            return f"a tensor of {len(shape)} axes, not {' or '.join(map(str, self.ranks))}"
        if self.batch is not None and shape and shape[0] > self.batch:
            return f"a batch of {shape[0]}, at most {self.batch}"
        if self.size is not None and any(size > self.size for size in shape[1:]):
            return f"an axis of {max(shape[1:])}, at most {self.size}"
        if self.values is not None and math.prod(shape) > self.values:
            return f"{math.prod(shape)} values, at most {self.values}"
        return ""

    def __str__(self) -> str:
        parts = [f"{'/'.join(map(str, self.ranks))} axes"] if self.ranks else []
        limits = (("batch", self.batch), ("axis", self.size), ("values", self.values))
        return ", ".join((*parts, *(f"{name} <= {most}" for name, most in limits if most is not None))) or "any"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """What one kind takes beyond what holds for all: its own grids and shapes.

    `one_group`: no grouped convolution. `window`: how many values an average pool takes at most. `axes`: those over
    which a mean goes.
    """

    input: Grids = Grids()
    weight: Grids = Grids()
    output: Grids = Grids()
    shapes: Shapes = Shapes()
    one_group: bool = False
    window: int | None = None
    axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        _check_least(self, 1, self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """low <= measure <= high at every kernel of these kinds; FORMULAS has the measures. None leaves a side open.

    `before`: only where the group ends in one of these kinds. `after`: only where an input is made by one of these.
    """

    measure: Measure
    kinds: frozenset[str]
    low: int | None = None
    high: int | None = None
    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.low is None and self.high is None:
            raise ConfigError(f"Position(measure={self.measure!r}): give low, high, or both.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"Position(low={self.low}, high={self.high}): expected low <= high.")

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high), open sides infinite."""
        return (-math.inf if self.low is None else self.low, math.inf if self.high is None else self.high)

    def __str__(self) -> str:
        low, high = self.bounds
        if low == -math.inf:
            return f"{FORMULAS[self.measure]} <= {high}"
        if high == math.inf:
            return f"{FORMULAS[self.measure]} >= {low}"
        return f"{FORMULAS[self.measure]} in [{low}, {high}]"
