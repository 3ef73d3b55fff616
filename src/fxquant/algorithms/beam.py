"""Integers of short rows by a beam: of each column several integers are tried, and the best rows so far go on.

    cost(q) = sum over columns i of ((w_i - q_i) / U_ii)^2       w_i: what is left of the row by the columns before it

GPTQ is the beam of width one: it rounds what is left to the nearest, and never goes back. Filters of depthwise
convolutions have a few numbers that make up for one another, so that the best integers are often not the nearest.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 32  # rows that go on
_TRIED = (0.0, 1.0, -1.0)  # from the nearest integer, in the direction of the value first


def beam(rows: Tensor, steps: Tensor, zeros: Tensor, factor: Tensor, ends: tuple[int, int]) -> Tensor:
    """Return the integers of rows (groups, rows, features), the best first: (groups, rows, found, features).

    `factor` is the upper Cholesky factor of the inverse of H, for each group, in the order of the features.
    """
    left, lost = rows.unsqueeze(2), rows.new_zeros(*rows.shape[:2], 1)
    made, tried = torch.zeros_like(left), rows.new_tensor(_TRIED)
    for column in range(rows.shape[2]):
        step, zero = (each[:, :, column, None, None] for each in (steps, zeros))
        value = left[..., column : column + 1]
        nearest = (value / step).round()
        towards = torch.where(value >= nearest * step, 1.0, -1.0)
        integers = (nearest + towards * tried + zero).clamp(*ends)
        loss = (value - (integers - zero) * step) / factor[:, column, column].view(-1, 1, 1, 1)
        total = (lost.unsqueeze(-1) + loss.square()).flatten(2)
        lost, place = total.topk(min(WIDTH, total.shape[2]), dim=2, largest=False)
        parent = (place // len(_TRIED)).unsqueeze(-1).expand(-1, -1, -1, rows.shape[2])
        made, left = made.gather(2, parent), left.gather(2, parent)
        made[..., column] = integers.flatten(2).gather(2, place)
        left[..., column + 1 :] -= loss.flatten(2).gather(2, place).unsqueeze(-1) * factor[
            :, column, column + 1 :
        ].unsqueeze(1).unsqueeze(1)
    return made
