"""What a bias takes of the mean that a rounded weight loses.

A channel whose bias is zero takes nothing: what is zero for an input of zeros, such as padding, stays so, because code
behind it may divide by its norm. Swin V2 does that to keys; a padded key would point anywhere with a tiny bias.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shifted(bias: Tensor, shift: Tensor) -> Tensor:
    """Return a bias that has taken its part of a shift of means."""
    return torch.where(bias == 0, bias, bias + shift.to(bias.dtype)).detach()


def takes_means(bias: object) -> bool:
    """Tell whether a bias, if there is one, takes the mean of every channel."""
    return isinstance(bias, Tensor) and bool((bias != 0).all())
