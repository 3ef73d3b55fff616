"""An average over n values is a sum times k / 2^m on hardware that shifts: the pool, times n * k / 2^m.

    3x3  63/64      5x5  250/256      6x6  252/256      7x7  1029/1024      14x14  4116/4096      else the nearest

The factor is a product inside of the pool's kernel, so that calibration, training and the converted model compute what
the device does.
"""

from __future__ import annotations

import math
import operator

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, note_rewrite, to_rewrite
from fxquant.passes.pool_window import pool_window
from fxquant.passes.read_op import module_of

_KNOWN = {(3, 3): 63 / 64, (5, 5): 250 / 256, (6, 6): 252 / 256, (7, 7): 1029 / 1024, (14, 14): 4116 / 4096}
_MOST = 128  # of k


def scale_average_pools(region: Region, context: Context) -> None:
    """Multiply average pools by the factor by which the hardware's are off, where the target asks for it."""
    for node, op in to_rewrite(region, context, "scale_average_pools", ("avg_pool", "adaptive_avg_pool")):
        window = pool_window(node, op, module_of(region, node))
        factor = 1.0 if window is None else pool_factor(window)
        if window is None or factor == 1.0:
            continue
        price = 20 * math.log10(abs(factor - 1.0))
        text = f"{window[0]}x{window[1]} times {factor:.6g}, {price:.1f} dB of noise"
        note_rewrite(node, Rewrite(name="scale_average_pools", text=text))
        _multiply(node, factor)


def _multiply(node: fx.Node, factor: float) -> None:
    users = list(node.users)
    made = call(node, operator.mul, node, factor)
    made.meta.pop("rewritten", None)
    node.append(made)
    for user in users:
        user.replace_input_with(node, made)


def pool_factor(window: tuple[int, int]) -> float:
    """n * k / 2^m for a window of n values."""
    if window in _KNOWN:
        return _KNOWN[window]
    count = window[0] * window[1]
    sizes = [1 << shift for shift in range(math.ceil(math.log2(count * _MOST)))]
    tries = [round(size / count) / size for size in sizes if round(size / count)]
    return count * min(tries, key=lambda found: abs(found - 1 / count))
