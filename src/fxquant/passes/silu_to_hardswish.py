"""silu(x) = x * sigmoid(x)   ->   hardswish(x) = x * clip(x / 6 + 1/2, 0, 1), for hardware without a sigmoid.

The two differ by up to 0.14. Networks that were not trained with it may lose much; `explain` has the price.
"""

from __future__ import annotations

from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, replace, to_rewrite
from fxquant.passes.read_op import operand_of


def silu_to_hardswish(region: Region, context: Context) -> None:
    """Compute silu as hardswish, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "silu_to_hardswish", ("silu",)):
        made = call(node, F.hardswish, operand_of(node))
        replace(node, made, Rewrite(name="silu_to_hardswish", text="hardswish for silu", curves=("silu", "hardswish")))
