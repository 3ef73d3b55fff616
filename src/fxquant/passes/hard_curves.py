"""Curves of straight lines for smooth ones, for hardware without a sigmoid.

    silu(x) = x * sigmoid(x)   ->   hardswish(x) = x * clip(x / 6 + 1/2, 0, 1)         up to 0.14 away
    sigmoid(x)                 ->   hardsigmoid(x) = clip(x / 6 + 1/2, 0, 1)           up to 0.07 away

Networks that were not trained with them may lose much; `explain` has the price on the data.
"""

from __future__ import annotations

from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, replace, to_rewrite
from fxquant.passes.read_op import operand_of

_HARDSWISH = Rewrite(name="silu_to_hardswish", text="hardswish for silu", curves=("silu", "hardswish"))
_HARDSIGMOID = Rewrite(name="sigmoid_to_hardsigmoid", text="hardsigmoid for sigmoid", curves=("sigmoid", "hardsigmoid"))


def silu_to_hardswish(region: Region, context: Context) -> None:
    """Compute silu as hardswish, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "silu_to_hardswish", ("silu",)):
        replace(node, call(node, F.hardswish, operand_of(node)), _HARDSWISH)


def sigmoid_to_hardsigmoid(region: Region, context: Context) -> None:
    """Compute sigmoid as hardsigmoid, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "sigmoid_to_hardsigmoid", ("sigmoid",)):
        replace(node, call(node, F.hardsigmoid, operand_of(node)), _HARDSIGMOID)
