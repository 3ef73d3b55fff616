"""Bias correction: rounding a weight moves the mean of its op's output; the bias takes that back.

    E[W x] + b  =  E[Wq x] + b'      with      b' = b + (W - Wq) E[x]

E[x] comes from calibration, in dynamic and weight-only modes as well: without data nothing is corrected. Ops without a
bias are left as they are, and so are zeros that code behind them may divide by (divided_by.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fxquant.algorithms.shift_bias import shifted
from fxquant.algorithms.weighted_op import WeightedOp, with_own_bias
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize
from fxquant.numerics.observers.channel_mean import ChannelMean, Means
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_range import quantize_weight
from fxquant.passes.watch import seen


@dataclass(frozen=True, kw_only=True, slots=True)
class BiasCorrection(Algorithm):
    """Keep the mean of the output of each linear and convolution that has integer weights and a bias."""

    def watch(self, region: Region, context: Context) -> Iterator[Watched]:
        for op in _with_bias(region, context):
            yield Watched(op.tensor, _means(op))

    def apply(self, region: Region, context: Context) -> None:
        means: dict[nn.Module, tuple[list[WeightedOp], ChannelMean]] = {}  # of all calls of a module
        for op in _with_bias(region, context):
            watcher = seen(region, op.tensor, _means(op))
            if isinstance(watcher, ChannelMean):
                calls, merged = means.setdefault(op.module, ([], watcher.fresh()))
                calls.append(op)
                merged.merge(watcher)
        for calls, merged in means.values():
            mean = merged.mean()
            if mean is not None:
                _correct(calls[0], mean, keep_zeros=any(op.keeps_zeros for op in calls))


def _means(op: WeightedOp) -> Means:
    return Means(channels=op.channels, axis=op.axis, rank=op.op.weight_rank)


def _with_bias(region: Region, context: Context) -> Iterator[WeightedOp]:
    # the weight of a block is rounded as another algorithm found best (fix_weight.py): nothing more is lost
    return (op for op in with_own_bias(region, context) if type(op.module) is not QatBlock)


@torch.no_grad()
def _correct(op: WeightedOp, mean: Tensor, *, keep_zeros: bool) -> None:
    module, spec, bias = op.module, op.spec, op.module.bias
    assert isinstance(bias, Tensor)
    values = op.weight.detach().to(torch.float32)
    lost = values - dequantize(*quantize_weight(values, spec, "weight"), spec)
    groups = getattr(module, "groups", 1)
    taps = lost.flatten(2).sum(2) if lost.dim() > 2 else lost  # every tap of a kernel sees the same mean
    rows = taps.view(groups, -1, taps.shape[1]) @ mean.to(taps.device).view(groups, -1, 1)
    module.bias = nn.Parameter(shifted(bias, rows.flatten(), keep_zeros=keep_zeros), requires_grad=bias.requires_grad)
