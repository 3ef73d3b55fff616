"""What an op was given in two runs of a graph, place by place, and the weight that makes up for the difference.

    x: in float    x': of rounded tensors        C: the covariance of x', D: that of x - x' with x'

    V = W + W D (C + r)^-1                       what makes W x of x' with least error
    b' = b + W E[x] - V E[x']

`r` grows with the numbers of a row beside the places that were seen, so that little is made of little. What b' loses by
few bits goes into V, as far as E[x'] is not zero; C is not centered then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.algorithms.bias_grid import BiasGrid
from fxquant.algorithms.grams import patches_of
from fxquant.algorithms.shift_bias import takes_means
from fxquant.algorithms.weighted_op import WeightedOp

_RIDGE = 0.003  # of the mean of C's diagonal; and as much of it as a row has numbers for each place that was seen
_FLOOR = 1e-4  # of that of the group where it is greatest: channels that hardly vary have nothing to tell
_MOST_MOVED = 0.25  # of the size of a row: where more is asked for, little is left of the inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Moments of x' and of x - x' by group: of products with x', and means; from `count` places."""

    second: Tensor
    cross: Tensor
    mean: Tensor
    less: Tensor
    count: int

    @classmethod
    def of(cls, op: WeightedOp, made: Sequence[Tensor], true: Sequence[Tensor]) -> Inputs | None:
        """Read some of the places, the same of both; None where there are none, or numbers that are not finite."""
        patches, device = patches_of(op), op.weight.device
        square = (patches.groups, patches.features, patches.features)
        second, cross = (torch.zeros(square, dtype=torch.float64, device=device) for _ in range(2))
        mean, less = (torch.zeros(square[:2], dtype=torch.float64, device=device) for _ in range(2))
        count, watcher = 0, patches.make()
        for mine, theirs in zip(made, true, strict=True):
            rows, wanted = watcher.rows(mine), watcher.rows(theirs)
            watcher.calls += 1
            if rows is None or wanted is None:
                return None
            second += rows.transpose(1, 2) @ rows
            cross += (wanted - rows).transpose(1, 2) @ rows
            mean += rows.sum(1)
            less += (wanted - rows).sum(1)
            count += rows.shape[1]
        if not count or not bool(torch.isfinite(second).all() and torch.isfinite(cross).all()):
            return None
        return cls(second=second / count, cross=cross / count, mean=mean / count, less=less / count, count=count)

    def wanted(
        self, op: WeightedOp, given: Mapping[str, Tensor], bias: Tensor | None, grid: BiasGrid | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(V, a bias, the H by which V is rounded), for a weight and bias in float. `bias` is what it was."""
        weight = given["weight"].detach()
        rows = weight.double().reshape(len(self.mean), -1, self.mean.shape[1])
        squared, second, cross = self.mean.unsqueeze(2) * self.mean.unsqueeze(1), self.second, self.cross
        if takes_means(op):
            second, cross = second - squared, cross - self.less.unsqueeze(2) * self.mean.unsqueeze(1)
        whole = second + self._ridge(second)
        moved = rows @ torch.linalg.solve(whole, cross.transpose(1, 2)).transpose(1, 2)
        far = moved.norm(dim=2, keepdim=True) / (_MOST_MOVED * rows.norm(dim=2, keepdim=True)).clamp_min(1e-30)
        found = rows + moved / far.clamp_min(1.0)
        if bias is not None and grid is not None and takes_means(op):
            true = (rows @ (self.mean + self.less).unsqueeze(2)).squeeze(2)
            free = true - (found @ self.mean.unsqueeze(2)).squeeze(2) + given["bias"].double().reshape(true.shape)
            bias = grid.rounded(free.flatten().to(bias))
            per_unit: Tensor = torch.linalg.solve(whole + squared, self.mean)
            found = found + (free - bias.to(free).reshape(free.shape)).unsqueeze(2) * per_unit.unsqueeze(1)
            second = second + squared
        return found.reshape(weight.shape).float(), bias, second

    def _ridge(self, second: Tensor) -> Tensor:
        size = second.diagonal(dim1=1, dim2=2).mean(1)
        share = _RIDGE + second.shape[1] / self.count
        ridge = torch.maximum(size, _FLOOR * size.max()).clamp_min(1e-30) * share
        return torch.diag_embed(ridge.unsqueeze(1).expand(self.mean.shape))
