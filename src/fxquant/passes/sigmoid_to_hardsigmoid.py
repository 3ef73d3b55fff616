"""sigmoid(x)   ->   hardsigmoid(x) = clip(x / 6 + 1/2, 0, 1), for hardware without a sigmoid.

The two differ by up to 0.07; `explain` has the price on the data.
"""

from __future__ import annotations

from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, replace, to_rewrite
from fxquant.passes.read_op import operand_of

_DONE = Rewrite(name="sigmoid_to_hardsigmoid", text="hardsigmoid for sigmoid", curves=("sigmoid", "hardsigmoid"))


def sigmoid_to_hardsigmoid(region: Region, context: Context) -> None:
    """Compute sigmoid as hardsigmoid, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "sigmoid_to_hardsigmoid", ("sigmoid",)):
        replace(node, call(node, F.hardsigmoid, operand_of(node)), _DONE)
