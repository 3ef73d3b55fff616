"""A global average pool over more values than a kernel takes   ->   two pools, one after the other. Exact.

Both windows have to divide the picture; where no such pair is small enough, the pool stays, and the target refuses it.
"""

from __future__ import annotations

import itertools

from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import call, note_rewrite, replace, to_rewrite
from fxquant.passes.pool_window import is_global, pool_window
from fxquant.passes.read_op import module_of, operand_of


def split_pools(region: Region, context: Context) -> None:
    """Split global average pools that are too large for a kernel, where the target asks for it."""
    for node, op in to_rewrite(region, context, "split_pools", ("adaptive_avg_pool",)):
        window = pool_window(node, op, module_of(region, node))
        most = context.hardware.kernel(op.kind).window
        if most is None or window is None or window[0] * window[1] <= most or not is_global(node, op):
            continue
        first = first_window(window, most)
        if first is None:
            continue
        rows, columns = window[0] // first[0], window[1] // first[1]
        done = Rewrite(
            name="split_pools",
            text=f"{window[0]}x{window[1]} as {first[0]}x{first[1]} and {rows}x{columns}, exact",
        )
        shape = (*node.meta["tensor"].shape[:2], rows, columns)
        part = call(node, F.avg_pool2d, operand_of(node), first, shape=shape)
        note_rewrite(part, done)
        replace(node, call(node, F.adaptive_avg_pool2d, part, 1), done)


def first_window(window: tuple[int, int], most: int) -> tuple[int, int] | None:
    """Return the window of the first of two pools, both of at most `most` values and as equal as can be."""
    whole = window[0] * window[1]
    pairs = itertools.product(_divisors(window[0]), _divisors(window[1]))
    fitting = [(a, b) for a, b in pairs if a * b <= most and whole // (a * b) <= most]
    nearest = {pair: (abs(pair[0] * pair[1] - whole**0.5), abs(pair[0] - pair[1]), pair) for pair in fitting}
    return min(fitting, key=nearest.__getitem__, default=None)


def _divisors(size: int) -> list[int]:
    return [each for each in range(1, size + 1) if size % each == 0]
