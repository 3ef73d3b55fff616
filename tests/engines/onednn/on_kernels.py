"""Models on oneDNN's kernels, beside their graphs."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

import fxquant as fq
from fxquant.engines.onednn.lower import lower


def on_kernels(reference: nn.Module) -> nn.Module:
    """A copy of a converted model, lowered."""
    lowered = copy.deepcopy(reference)
    lower(lowered)
    return lowered


def both(model: nn.Module, *args: Any, mapping: Any = None, **kwargs: Any) -> tuple[nn.Module, nn.Module]:
    reference = fq.quantize(
        model.eval(),
        [args or kwargs],
        qconfig_mapping=mapping,
        example_inputs=args,
        example_kwargs=kwargs,
        engine="reference",
    )
    return reference, on_kernels(reference)
