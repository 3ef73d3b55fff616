"""The Gram matrix of what a linear or convolution multiplies its weight with, for GPTQ and AdaRound.

    second = sum x x^T,  first = sum x      x: a row of a linear's input, or a patch under a convolution's kernel

A loss of the weight by D costs sum |D x|^2 = tr(D second D^T) at the output: all that rounding has to know.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.numerics.observers.watcher import Watcher, shows_numbers

_BLOCK = 256  # columns that are done at one time
_FEWEST = {False: 256, True: 64}  # rows that are always taken, if there are as many, by whether there are groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Patches:
    """The Gram matrix of an op's input, as a statistic to keep. A linear has no `kernel`; `padding` is as F.pad has it.

    A call costs about `share` calls of the op, which makes `outputs` numbers of a row: of more rows, some are taken,
    and no more than `times` as many as a row has numbers.
    """

    channels: int
    outputs: int
    share: float = 2.0
    times: int = 64
    groups: int = 1
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    mode: str = "constant"

    @property
    def label(self) -> str:
        numbers = (self.channels, self.outputs, self.groups, *self.kernel, *self.stride, *self.dilation, *self.padding)
        return f"gram_{'_'.join(map(str, numbers))}_{round(100 * self.share)}_{self.times}_{self.mode}"

    def make(self) -> Gram:
        return Gram(self)

    @property
    def features(self) -> int:
        """How many numbers a row of one group has: the product of a weight's axes but the first."""
        return self.channels // self.groups * math.prod(self.kernel)


class Answers:
    """What was chosen by a Gram matrix, and for what. Copies share it: a model is copied for each conversion."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Answers:
        return self

    def __reduce__(self) -> tuple[type[Answers], tuple[()]]:
        return Answers, ()


class Gram(Watcher):
    """Watches the input of an op. Keeps one matrix and one vector for each of its groups.

    Of the matrix, only what is not below the diagonal counts.
    """

    second: Tensor
    first: Tensor
    count: Tensor

    def __init__(self, patches: Patches) -> None:
        super().__init__()
        self.patches = patches
        self.register_buffer("second", torch.zeros(patches.groups, patches.features, patches.features))
        self.register_buffer("first", torch.zeros(patches.groups, patches.features))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.calls = 0
        self.answers = Answers()

    @torch.no_grad()
    def forward(self, x: Tensor) -> None:
        if not shows_numbers(x):
            return
        rows = self.rows(x.detach())
        if rows is None or not rows.shape[1]:
            return
        if self.second.device != rows.device:
            self.to(rows.device)
        self.calls += 1
        _add_products(self.second, rows)
        self.first += rows.sum(1)
        self.count += rows.shape[1]

    def rows(self, x: Tensor) -> Tensor | None:
        """(groups, rows, features) of some of the rows of x: others from call to call."""
        patches = self.patches
        if not patches.kernel:
            if x.shape[-1] != patches.channels:
                return None
            rows = x.reshape(-1, patches.channels)
            return rows[self._start(len(rows)) :: self._step(len(rows))].float().unsqueeze(0)
        dims = len(patches.kernel)
        x = x.unsqueeze(0) if x.dim() == dims + 1 else x
        if x.dim() != dims + 2 or x.shape[1] != patches.channels:
            return None
        zeros = patches.mode == "constant"
        if any(patches.padding) and not zeros:
            x = F.pad(x, patches.padding, mode=patches.mode)
        before = [patches.padding[2 * axis] if zeros and patches.padding else 0 for axis in reversed(range(dims))]
        after = [patches.padding[2 * axis + 1] if zeros and patches.padding else 0 for axis in reversed(range(dims))]
        sizes = [
            (size + low + high - dilation * (kernel - 1) - 1) // stride + 1
            for size, low, high, kernel, stride, dilation in zip(
                x.shape[2:], before, after, patches.kernel, patches.stride, patches.dilation, strict=True
            )
        ]
        if min(sizes) < 1:
            return None
        places = torch.arange(math.prod(sizes), device=x.device)
        total = len(x) * len(places)
        step = self._step(total)
        samples = torch.arange(self._start(total), total, step, device=x.device)
        sample, place = samples // len(places), places[samples % len(places)]
        corner: list[Tensor] = []
        for size, stride in zip(reversed(sizes), reversed(patches.stride), strict=True):
            corner.insert(0, place % size * stride)
            place = place // size
        last, taps = x.movedim(1, -1), []
        if len(samples) * math.prod(patches.kernel) > total:  # more is read than there is: let channels lie together
            last = last.contiguous()
        for tap in itertools.product(*map(range, patches.kernel)):
            at = [
                begin + step * size - low
                for begin, step, size, low in zip(corner, tap, patches.dilation, before, strict=True)
            ]
            taps.append(_taken(last, sample, at))
        rows = torch.stack(taps, -1).float()  # row, channel, tap: as a weight is flattened
        return rows.reshape(len(rows), patches.groups, patches.features).transpose(0, 1)

    def _step(self, rows: int) -> int:
        patches = self.patches
        affordable = int(patches.share * rows * (patches.outputs // patches.groups)) // patches.features
        most = max(min(affordable, patches.times * patches.features), _FEWEST[patches.groups > 1])
        return max(1, rows // most)

    def _start(self, rows: int) -> int:
        return self.calls % self._step(rows)

    def merge(self, other: Gram) -> None:
        self.second += other.second.to(self.second.device)
        self.first += other.first.to(self.first.device)
        self.count += other.count.to(self.count.device)

    def fresh(self) -> Gram:
        return Gram(self.patches)

    def moments(self) -> tuple[Tensor, Tensor] | None:
        """(mean of x x^T, mean of x) per group, in float64; None if nothing was seen, or something infinite.

        Covariances are less than those of the rows, as far as so few rows tell (`shrink`).
        """
        if not int(self.count) or not bool(torch.isfinite(self.second).all()):
            return None
        whole = self.second.double()
        whole = whole.triu() + whole.triu(1).transpose(1, 2)
        mean = self.first.double() / self.count
        squared = mean.unsqueeze(2) * mean.unsqueeze(1)
        return shrink(whole / self.count - squared, int(self.count)) + squared, mean


def _add_products(second: Tensor, rows: Tensor) -> None:
    """Add x x^T of rows x to each group's matrix, in place. Of large ones, blocks below the diagonal are left out."""
    if len(second) > 1:
        second += rows.transpose(1, 2) @ rows
        return
    for at in range(0, second.shape[1], _BLOCK):
        second[0, at : at + _BLOCK, at:].addmm_(rows[0, :, at : at + _BLOCK].t(), rows[0, :, at:])


def shrink(covariance: Tensor, count: int) -> Tensor:
    """Shrink what lies beside the diagonals of covariances (groups, features, features) of `count` rows, in place.

    By the share that is chance: the variance of these numbers, if the rows were normal, beside their squares (Schaefer
    and Strimmer, 2005). Integers that are chosen by chance correlations are worse than the nearest on any other data.
    """
    diagonal = covariance.diagonal(dim1=1, dim2=2).clone()
    beside = covariance.square().sum((1, 2)) - diagonal.square().sum(1)
    chance = (diagonal.sum(1).square() - diagonal.square().sum(1) + beside) / count
    kept = 1 - (chance / beside.clamp_min(1e-300)).clamp(0.0, 1.0)
    covariance *= kept.view(-1, 1, 1)
    covariance.diagonal(dim1=1, dim2=2).copy_(diagonal)
    return covariance


def _taken(x: Tensor, sample: Tensor, at: list[Tensor]) -> Tensor:
    """Return the vectors of x at some places, and zeros for those outside of it: a padded copy would be all of x."""
    taken: Tensor = x[(sample, *(place.clamp(0, size - 1) for place, size in zip(at, x.shape[1:], strict=False)))]
    outside = torch.stack([(place < 0) | (place >= size) for place, size in zip(at, x.shape[1:], strict=False)]).any(0)
    return taken.masked_fill_(outside.unsqueeze(-1), 0.0) if bool(outside.any()) else taken
