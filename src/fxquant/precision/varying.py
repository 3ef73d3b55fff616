"""How far outputs are apart in what differs between samples: a large constant hides an error as large as the answer.

    y' = y - mean over samples of y        decibel(|y'|^2, |z - y|^2)        cosine of y' and z'

A sample is a row of the first axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.insight.measure import decibel

_ROWS = 4  # fewer may be alike by chance
_ALIKE = 1e-9  # of the power: what differs less is float's own rounding, of samples that are the same


@dataclass(slots=True)
class Varying:
    """Sums over all batches of a tensor y and what came in its place, z; `rows` is 0 where they cannot be added up."""

    rows: int = 0
    mean: Tensor | None = None  # of y, over the samples so far
    other: Tensor | None = None  # of z
    signal: float = 0.0  # squares of what y differs from its mean by
    rest: float = 0.0  # the same of z, from its own
    dot: float = 0.0
    noise: float = 0.0
    whole: float = 0.0
    given_up: bool = False

    def add(self, wanted: Tensor, found: Tensor) -> None:
        """Take in a batch, by means of parts (Chan et al., 1979), which lose no digits to a large mean."""
        if self.given_up or not wanted.dim() or not wanted.numel():
            return
        y, z = (
            each.detach().cpu().double().flatten(1) if each.dim() > 1 else each.detach().cpu().double()[:, None]
            for each in (wanted, found)
        )
        alike = self.mean is None or self.mean.shape == y.shape[1:]
        self.given_up = not (alike and bool(torch.isfinite(y).all()) and bool(torch.isfinite(z).all()))
        if self.given_up:
            return
        count, mean, other = len(y), y.mean(0), z.mean(0)
        y_, z_ = y - mean, z - other
        self.signal += float(y_.square().sum())
        self.rest += float(z_.square().sum())
        self.dot += float((y_ * z_).sum())
        self.noise += float((z - y).square().sum())
        self.whole += float(y.square().sum())
        if self.mean is None or self.other is None:
            self.rows, self.mean, self.other = count, mean, other
            return
        total = self.rows + count
        share, dy, dz = self.rows * count / total, mean - self.mean, other - self.other
        self.signal += share * float(dy.square().sum())
        self.rest += share * float(dz.square().sum())
        self.dot += share * float((dy * dz).sum())
        self.mean, self.other, self.rows = self.mean + dy * (count / total), self.other + dz * (count / total), total

    @property
    def sqnr(self) -> float:
        """In dB; inf where too little is known, or nothing differs."""
        known = not self.given_up and self.rows >= _ROWS and self.signal > _ALIKE * self.whole
        return decibel(self.signal, self.noise) if known else math.inf

    @property
    def cosine(self) -> float:
        """Of what differs; each from its own mean."""
        norm = math.sqrt(self.signal) * math.sqrt(self.rest)
        return max(-1.0, min(1.0, self.dot / norm)) if norm else 0.0
