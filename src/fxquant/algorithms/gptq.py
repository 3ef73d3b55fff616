"""GPTQ: round a weight column by column, and let the columns that are left make up for what was lost.

    cost(Q) = tr((W - Q) H (W - Q)^T)       H: the mean of x x^T in calibration, centered where a bias takes the mean

Columns go in the order of H's diagonal, the greatest first. With U the upper Cholesky factor of H^-1, the loss of
column i, (w_i - q_i) / U_ii, times the rest of U's row i, goes into the columns after it (Frantar et al., 2022).
Below 8 bits, narrower ranges are tried as well, and each row keeps the one that costs least. In short rows on coarse
grids, a beam goes on looking (beam.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.algorithms.beam import WIDTH, beam
from fxquant.algorithms.by_outputs import ByOutputs
from fxquant.algorithms.grams import grams, patches_of, watch_grams
from fxquant.algorithms.narrow import NARROWER, may_narrow, whole_scales
from fxquant.algorithms.round_by import Chosen, cost, round_by, spread
from fxquant.algorithms.shift_bias import shifted, takes_means
from fxquant.algorithms.weighted_op import WeightedOp, untied_ops
from fxquant.config.spec import Spec
from fxquant.errors import CalibrationError, ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize
from fxquant.numerics.observers.gram import Gram

_BLOCK = 64  # columns after which the rest is brought up to date
_AT_ONCE = 1 << 24  # elements of all tries at one time
_MOST_TIMES = 40  # that ten times as much is added to a diagonal
_SHORT, _SHORT_DAMPING = 32, 1e-4  # features of rows that a beam goes through; what their H needs


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTQ(Algorithm):
    """Choose the integers of weights of at most `most_bits` for least loss at the output of their op, on the data.

    `damping` is added to the diagonal of H, as a share of its mean. Ops whose weights have rows of more than
    `most_features` numbers are left as they are: H has the square of that. `fine_features` is the same for weights of 8
    bits with a scale per channel or group, which lose less by rounding to the nearest.
    """

    chooses_weights: ClassVar[bool] = True
    most_bits: int = 8
    damping: float = 0.01
    most_features: int = 8192
    fine_features: int = 8192

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise ConfigError(f"GPTQ(damping={self.damping!r}): expected a positive number, such as 0.01.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_grams(self._ops(region, context))

    def apply(self, region: Region, context: Context) -> None:
        found = grams(region, self._ops(region, context))
        outputs = ByOutputs(region, [op for op, _ in found])
        for op, gram in found:
            moments = gram.moments()
            if moments is not None:
                choose = functools.partial(self._choose, outputs, op, gram, moments[1])
                round_by(region, op, *moments, choose, "GPTQ")

    def _choose(
        self,
        outputs: ByOutputs,
        op: WeightedOp,
        gram: Gram,
        mean: Tensor,
        weight: Tensor,
        second: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        spec: Spec,
    ) -> Chosen:
        """Choose integers, or take those that were chosen for the same weight and data: models are decided again.

        Several ops may read one tensor, so the module's path is part of the question.
        """
        given = weight, scale, zero_point
        of = (str(op.node.target), spec, self.damping, float(second.sum()))
        known = gram.answers.known.get(of)
        if known is not None and all(map(torch.equal, known[0], given)):
            return known[1]
        tried = try_scales(weight, second, scale, zero_point, spec, self.damping)
        made = outputs.best(op, mean, tried, zero_point)
        gram.answers.known[of] = given, made
        return made

    def _ops(self, region: Region, context: Context) -> Iterator[WeightedOp]:
        for op in untied_ops(region, context):
            most = self.fine_features if op.is_fine else self.most_features
            if op.spec.bits <= self.most_bits and patches_of(op).features <= most:
                yield op


def choose_by(
    op: WeightedOp, scale: Tensor, zero_point: Tensor, second: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(integers, scale, what the bias takes) of an op's weight, for inputs with these moments."""
    weight = op.weight.detach().float()
    bias = getattr(op.module, "bias", None)
    if takes_means(op):
        second = second - mean.unsqueeze(2) * mean.unsqueeze(1)
    integers, scale = choose_integers(weight, second.to(weight.device), scale, zero_point, op.spec, damping=0.01)
    lost = weight - dequantize(integers, scale, zero_point, op.spec)
    rows = lost.view(len(mean), -1, mean.shape[1]) @ mean.to(lost).unsqueeze(2)
    shift = rows.flatten()
    if bias is not None:
        shift = shifted(bias, shift, keep_zeros=op.keeps_zeros) - bias.detach()
    return integers, scale, shift


def choose_integers(
    weight: Tensor, second: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec, damping: float
) -> Chosen:
    """(integers, scale): `second` has the H of each group of channels. One scale for all may be narrower, too."""
    return try_scales(weight, second, scale, zero_point, spec, damping)[0]


def try_scales(
    weight: Tensor, second: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec, damping: float
) -> list[Chosen]:
    """Return what is best by what a weight loses at its output: one, or two where rows do not agree.

    Groups of channels count beside their own size, as each has a filter of its own; rows of one group by what they
    lose. Where a clip or relu follows, the largest rows lose what does not matter, so the other order may be right.
    """
    scales = whole_scales(weight, scale, spec)
    tried = [choose_rows(weight, second, each, zero_point, spec, damping) for each in scales]
    if len(tried) == 1:
        return tried
    lost = [cost(weight - dequantize(q, step, zero_point, spec), second) for q, step in tried]
    whole = cost(weight, second).clamp_min(1e-30)
    in_all = min(range(len(tried)), key=[float(each.sum()) for each in lost].__getitem__)
    by_row = min(range(len(tried)), key=[float((each / whole).clamp_max(1.0).mean()) for each in lost].__getitem__)
    order = (in_all, by_row) if len(second) == 1 else (by_row, in_all)
    return [tried[at] for at in dict.fromkeys(order)]


def choose_rows(
    weight: Tensor, second: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec, damping: float
) -> Chosen:
    """(integers, scale): rows with a scale of their own and few bits may get a narrower one; else it stays."""
    shares = NARROWER if may_narrow(spec) else (1.0,)
    rows = weight.reshape(len(second), -1, second.shape[1])
    steps = spread(scale, weight, spec).reshape(rows.shape)
    zeros = spread(zero_point, weight, spec).reshape(rows.shape)
    found, kept = torch.empty_like(rows), torch.empty_like(rows[..., 0])
    order, factor = _factor(second, damping)
    for at in _parts(rows, len(shares)):
        groups = at[0]
        tries = torch.stack([steps[at] * share for share in shares])
        made = _round_columns(rows[at], tries, zeros[at], order[groups], factor[groups], spec)
        if len(shares) == 1:
            found[at] = made[0]
            continue
        lost = (rows[at] - (made - zeros[at]) * tries).double()
        best = ((lost @ second[groups]) * lost).sum(-1).argmin(0)
        found[at] = made.gather(0, best[None, ..., None].expand(1, *made.shape[1:]))[0]
        kept[at] = torch.tensor(shares, device=weight.device)[best]
    if may_narrow(spec):
        scale = scale * kept.view(-1, *[1] * (scale.dim() - 1))
        steps = steps * kept.unsqueeze(-1)
    if rows.shape[2] <= _SHORT and (spec.bits < 8 or spec.granularity == "per_tensor"):
        found = _look_further(rows, found, steps, zeros, second, spec)
    return found.reshape(weight.shape).to(spec.dtype), scale


def _look_further(rows: Tensor, found: Tensor, steps: Tensor, zeros: Tensor, second: Tensor, spec: Spec) -> Tensor:
    """Return integers of short rows that cost no more than those found."""
    order, factor = _factor(second, _SHORT_DAMPING)
    for at in _parts(rows, WIDTH):
        groups = at[0]
        placed = order[groups].unsqueeze(1).expand(rows[at].shape)
        values, step, zero = (each[at].gather(2, placed) for each in (rows, steps, zeros))
        made = beam(values, step, zero, factor[groups], (spec.quant_min, spec.quant_max))
        back = torch.argsort(placed, dim=2).unsqueeze(2).expand(made.shape)
        tried = torch.cat((found[at].unsqueeze(2), made.gather(3, back)), 2)
        lost = (rows[at].unsqueeze(2) - (tried - zeros[at].unsqueeze(2)) * steps[at].unsqueeze(2)).double()
        best = torch.einsum("grkf,gfh,grkh->grk", lost, second[groups].double(), lost).argmin(2)
        found[at] = tried.gather(2, best[..., None, None].expand(-1, -1, 1, tried.shape[3])).squeeze(2)
    return found


def _parts(rows: Tensor, tries: int) -> Iterator[tuple[slice, slice]]:
    """Groups, or rows of one group, that are done at one time."""
    groups, count, features = rows.shape
    together = max(1, _AT_ONCE // (tries * count * features))
    size = count if groups > 1 else max(1, _AT_ONCE // (tries * features))
    for group in range(0, groups, together):
        for row in range(0, count, size):
            yield slice(group, group + together), slice(row, row + size)


def _factor(hessian: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """Of each group: the order of the columns, and the upper Cholesky factor of the inverse in that order."""
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    mean, size = diagonal.mean(1), hessian.shape[1]
    order = torch.argsort(diagonal, dim=1, descending=True, stable=True)
    sorted_ = hessian.gather(1, order.unsqueeze(2).expand(-1, -1, size))
    sorted_ = sorted_.gather(2, order.unsqueeze(1).expand(-1, size, -1))
    lower = _cholesky(sorted_.flip(1, 2), torch.where(mean > 0, damping * mean, 1.0))
    upper = lower.flip(1, 2).float()  # float32 does: the damping bounds its condition
    return order, torch.linalg.solve_triangular(upper, torch.eye(size).to(upper).expand_as(upper), upper=True)


def _cholesky(matrix: Tensor, added: Tensor) -> Tensor:
    """Return the lower factor of matrices, with `added` on their diagonals, or as much more as it takes.

    Of inputs that hardly vary beside their mean, rounding leaves a covariance that is not positive.
    """
    one = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(_MOST_TIMES):
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(matrix + added.view(-1, 1, 1) * one)
        if not failed.any():
            return lower
        added = torch.where(failed > 0, 10 * added, added)
    raise CalibrationError("GPTQ got inputs that are not finite. Look for NaN in the calibration data.")


def _round_columns(rows: Tensor, steps: Tensor, zeros: Tensor, order: Tensor, factor: Tensor, spec: Spec) -> Tensor:
    """Return the integers of rows (groups, rows, features), for each try of the steps.

    Columns come first here, so that what is done to one of them is done to memory in one piece.
    """
    placed = order.unsqueeze(1).expand(rows.shape)
    left = rows.gather(2, placed).expand(steps.shape).movedim(3, 0).contiguous()
    step = steps.gather(3, placed.expand(steps.shape)).movedim(3, 0).contiguous()
    zero = zeros.gather(2, placed).movedim(2, 0).contiguous()
    shifted, factors = bool(zero.any()), factor.permute(1, 2, 0).unsqueeze(-1)  # column, column, group, one
    made, losses = torch.empty_like(left), torch.empty_like(left[:_BLOCK])
    values, integers, lost = left.unbind(), made.unbind(), losses.unbind()
    inverse, gains = (1.0 / step).unbind(), (1.0 / factor.diagonal(dim1=1, dim2=2).t()).unsqueeze(-1).unbind()
    for start in range(0, len(left), _BLOCK):
        stop = min(start + _BLOCK, len(left))
        for column in range(start, stop):
            integer, loss = integers[column], lost[column - start]
            torch.mul(values[column], inverse[column], out=integer).round_()
            if shifted:
                integer.add_(zero[column]).clamp_(spec.quant_min, spec.quant_max)
                torch.addcmul(values[column], integer - zero[column], step[column], value=-1, out=loss)
            else:
                integer.clamp_(spec.quant_min, spec.quant_max)
                torch.addcmul(values[column], integer, step[column], value=-1, out=loss)
            loss.mul_(gains[column])
            left[column + 1 : stop].addcmul_(factors[column, column + 1 : stop].unsqueeze(1), loss, value=-1)
        if stop < len(left):
            left[stop:] -= torch.einsum("kgn,ktgr->ntgr", factors[start:stop, stop:, :, 0].movedim(2, 1), losses)
    back = torch.argsort(order, dim=1).unsqueeze(1)
    return made.movedim(0, 3).gather(3, back.expand(rows.shape).expand(steps.shape))
