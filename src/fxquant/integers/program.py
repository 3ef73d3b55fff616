"""A program on integers, as values: what goes in and out, and the steps between. docs/integers.md has the format.

Tensors of a program are whole numbers. What they stand for is known to the ports alone: (q - zero_point) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Scales = tuple[Fraction, ...]  # one, or one for each index along an axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An input or output: the caller's name for it, the program's tensor, and the grid of that.

    `shape`: of an input, that of the example; None for the batch, and where it is not known.
    """

    name: str
    tensor: str
    scale: Scales
    axis: int | None
    zero_point: int
    low: int
    high: int
    dtype: str
    rounding: str
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One op. `inputs` and `output` are tensors, `constants` those of the dump by their role, `attributes` plain."""

    op: str
    inputs: tuple[str, ...]
    output: str
    constants: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Steps in order, with their constants. `notes` say where the result may differ from the float simulation."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, Array]
    notes: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether each result is, bit by bit, that of the simulation."""
        return not self.notes
