"""AdaRound: learn for each weight whether it is rounded up or down, by what that does to the output of its op.

    cost(V) = tr((W - Q) H (W - Q)^T)  +  regularizer        Q = s (clip(floor(W / s) + h(V) + z) - z)
    h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)                  regularizer: sum of 1 - |2 h(V) - 1|^b, b from 20 to 2

The regularizer drives every h(V) to 0 or 1 (Nagel et al., 2020). H is the mean of x x^T that calibration kept, so no
batch is kept, and a step costs one product of the weight with H. Rows start from the range that GPTQ finds best, and
keep the integers of GPTQ where those cost less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.algorithms.gptq import choose_integers
from fxquant.algorithms.grams import grams, patches_of, watch_grams
from fxquant.algorithms.round_by import Chosen, cost, round_by, spread
from fxquant.algorithms.soft_rounding import SoftRounding, sharpness
from fxquant.algorithms.weighted_op import WeightedOp, untied_ops
from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize
from fxquant.progress import following

_RATE, _PRESSURE = 0.05, 4.0  # of Adam; of the regularizer, beside what the nearest integers cost


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaRound(Algorithm):
    """Choose the integers of weights of at most `most_bits` by `steps` of gradient descent for each op.

    Ops whose weights have rows of more than `most_features` numbers are left as they are: H has the square of that.
    `progress` shows a bar, in a terminal.
    """

    chooses_weights: ClassVar[bool] = True
    steps: int = 600
    most_bits: int = 8
    most_features: int = 4096
    progress: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"AdaRound(steps={self.steps!r}): expected a positive whole number, such as 600.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_grams(self._ops(region, context))

    def apply(self, region: Region, context: Context) -> None:
        for op, gram in following(grams(region, self._ops(region, context)), "AdaRound", wanted=self.progress):
            moments = gram.moments()
            if moments is not None:
                second, mean = moments
                round_by(region, op, second, mean, self._choose, "AdaRound")

    def _ops(self, region: Region, context: Context) -> Iterator[WeightedOp]:
        for op in untied_ops(region, context):
            if op.spec.bits <= self.most_bits and patches_of(op).features <= self.most_features:
                yield op

    def _choose(self, weight: Tensor, second: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Chosen:
        start, scale = choose_integers(weight, second, scale, zero_point, spec, damping=0.01)
        learned = learn_rounding(weight, second.float(), scale, zero_point, spec, self.steps)
        before, after = (cost(weight - dequantize(q, scale, zero_point, spec), second) for q in (start, learned))
        better = (after < before).reshape(-1, *[1] * (weight.dim() - 1))
        return torch.where(better, learned, start), scale


def learn_rounding(weight: Tensor, second: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec, steps: int) -> Tensor:
    """Return the integers that gradient descent on V ends with."""
    step, zero = (spread(each, weight, spec) for each in (scale, zero_point))
    soft = SoftRounding(weight, step, zero, spec)
    optimizer = torch.optim.Adam([soft.v], lr=_RATE)
    unit = float(cost(weight - soft.values(soft.nearest()), second).sum())
    if not unit > 0:
        return soft.integers(soft.nearest())
    with torch.enable_grad():
        for count in range(steps):
            h = soft.h()
            loss = cost(weight - soft.values(h), second).sum() / unit
            loss = loss + _PRESSURE * soft.undecided(h, sharpness(count / steps))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return soft.integers(soft.decided())
