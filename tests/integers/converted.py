"""A model converted for a target of integers, after one batch of calibration."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq


def converted(model: nn.Module, x: torch.Tensor, target: str) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    with torch.no_grad():
        prepared(x)
    return fq.convert_to_reference_fx(prepared)
