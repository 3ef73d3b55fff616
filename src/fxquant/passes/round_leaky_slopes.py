"""leaky_relu(x, a)   ->   leaky_relu(x, round(256 a) / 256), which a multiplication and a shift compute."""

from __future__ import annotations

from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, replace, to_rewrite
from fxquant.passes.read_op import module_of, operand_of, setting

STEPS = 256
_DEFAULT = 0.01  # torch's


def round_leaky_slopes(region: Region, context: Context) -> None:
    """Round the slopes of leaky relus to k / 256, where the target asks for it."""
    for node, _ in to_rewrite(region, context, "round_leaky_slopes", ("leaky_relu",)):
        slope = setting(node, module_of(region, node), 1, "negative_slope", _DEFAULT)
        if not isinstance(slope, (int, float)) or rounded(slope) == slope:
            continue
        text = f"slope {slope:g} as {round(slope * STEPS)}/{STEPS}"
        curves = (f"leaky_relu {slope!r}", f"leaky_relu {rounded(slope)!r}")
        made = call(node, F.leaky_relu, operand_of(node), rounded(slope))
        replace(node, made, Rewrite(name="round_leaky_slopes", text=text, curves=curves))


def rounded(slope: float) -> float:
    """Return the nearest k / 256."""
    return round(slope * STEPS) / STEPS
