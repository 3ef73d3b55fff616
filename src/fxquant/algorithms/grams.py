"""Gram matrices of the inputs of weighted ops: which to watch, and what was seen of all calls of a module."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.graph.algorithm import Watched
from fxquant.graph.region import Region
from fxquant.numerics.observers.gram import Gram, Patches
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.watch import seen

_SHARES = {False: 2.0, True: 0.25}  # what a call of the watcher costs, in calls of the op, by `is_fine`
_TIMES = {False: 64, True: 4}  # rows of a call, for each number of a row, that tell enough
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def patches_of(op: WeightedOp) -> Patches:
    """Return the statistic of an op's input, as its weight sees it."""
    module, outputs = op.module, int(op.weight.shape[0])
    if not isinstance(module, nn.modules.conv._ConvNd):
        return Patches(channels=op.channels, outputs=outputs, share=_SHARES[op.is_fine], times=_TIMES[op.is_fine])
    return Patches(
        channels=op.channels,
        outputs=outputs,
        share=_SHARES[op.is_fine],
        times=_TIMES[op.is_fine],
        groups=op.groups,
        kernel=tuple(module.kernel_size),
        stride=tuple(module.stride),
        dilation=tuple(module.dilation),
        padding=tuple(module._reversed_padding_repeated_twice),
        mode=MODES[module.padding_mode],
    )


def watch_grams(ops: Iterable[WeightedOp]) -> list[Watched]:
    """Return what calibration is to keep for these ops."""
    return [Watched(op.tensor, patches_of(op)) for op in ops]


def grams(region: Region, ops: Iterable[WeightedOp]) -> list[tuple[WeightedOp, Gram]]:
    """Return the first call of each module, with what was seen of the inputs of all its calls.

    Fixed weights are left out.
    """
    found: dict[nn.Module, tuple[WeightedOp, Gram]] = {}
    for op in ops:
        watcher = seen(region, op.tensor, patches_of(op))
        if isinstance(watcher, Gram) and type(op.module) is not QatBlock:
            first = found.setdefault(op.module, (op, watcher))
            if first[0] is not op:
                found[op.module] = first[0], _both(first[1], watcher)
    return [*found.values()]


def _both(one: Gram, other: Gram) -> Gram:
    made = one.fresh()
    made.merge(one)
    made.merge(other)
    return made
