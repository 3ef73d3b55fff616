"""What stands for the tensors of a float graph while it is read: integers and what one of them means.

Whole   whole numbers of the program: the integers of a grid, sums of products, sums of those
Curve   an elementwise function of the integers of a grid, until it is rounded: then it is a table
Input   an argument of the model, until it is rounded
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from torch import fx

from fxquant.integers.program import Port, Scales


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A tensor of the program: (q - zero) * scale. `bound` is the largest |q - zero| that it can have.

    `grid` is there while these are the integers that a quantize op wrote, perhaps moved.
    """

    tensor: str
    scale: Scales
    axis: int | None
    zero: int
    bound: int
    grid: Port | None = None

    @property
    def one_scale(self) -> Fraction | None:
        """The scale, if it is one for all channels."""
        return self.scale[0] if self.axis is None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """`nodes`, one after the other, of the integers of `source`."""

    source: Whole
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """Return the argument of this name, in float or as the integers that it is given as."""

    name: str


Value = Whole | Curve | Input
