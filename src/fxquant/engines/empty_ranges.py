"""Ranges of tensors without elements: torch's ops that find one raise there, where the float op gives an empty result.

choose_qparams(x) -> (scale, zero_point) of x, or (1, 0) if x is empty
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.region import Region, lowering_of
from fxquant.passes.fill_grids import fill_grids


def allow_empty(region: Region, context: Context | None = None) -> None:
    """Let the QDQ graph of a region, in place, run on empty tensors. One that waits for its grids is left."""
    fill_grids(region)
    lowering_of(region).lower = allow_empty
    for node in region.graph.nodes:
        if node.target in _WITH_EMPTY:
            node.target = _WITH_EMPTY[node.target]
    region.recompile()


def choose_qparams(x: Tensor, *ends: object) -> tuple[Tensor, Tensor]:
    return torch_compat.CHOOSE_QPARAMS(x, *ends) if x.numel() else _any(x)


def choose_qparams_symmetric(x: Tensor, *ends: object) -> tuple[Tensor, Tensor]:
    return torch_compat.CHOOSE_QPARAMS_SYMMETRIC(x, *ends) if x.numel() else _any(x)


def _any(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones((), dtype=torch.float64, device=x.device), torch.zeros((), dtype=torch.int64, device=x.device)


_WITH_EMPTY = {
    torch_compat.CHOOSE_QPARAMS: choose_qparams,
    torch_compat.CHOOSE_QPARAMS_SYMMETRIC: choose_qparams_symmetric,
}
