"""Whether a runtime computes what the quantized graph says, seen before the runtime is used.

Two right results differ, too: sums in another order round some values to the next step, and deep networks make much
of that. So the graph itself is run on inputs changed by less than a step, and the runtime may be off by little more
than what this changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.errors import FxQuantError
from fxquant.numerics.affine import sqnr_db

_NUDGE = 1 + 2**-10
_SLACK_DB, _ENOUGH_DB = 6.0, 10.0


def check_agreement(runtime: nn.Module, graph: nn.Module, example: Mapping[str, Any], engine: str) -> None:
    """Raise if a runtime's results on an example are not those of the graph that it was made from."""
    with torch.no_grad():
        try:
            expected = graph(**example)
            nudged = graph(**pytree.tree_map_only(Tensor, _nudge, dict(example)))
        except (RuntimeError, IndexError, ValueError):
            return  # made-up inputs, so this says nothing about either
        found = _worst_db(expected, runtime(**example))
    wanted = min(_ENOUGH_DB, _worst_db(expected, nudged) - _SLACK_DB)
    if found < wanted:
        raise FxQuantError(
            f"engine={engine!r} computes something else than the quantized graph: their results agree to "
            f"{found:.1f} dB on random inputs, where rounding leaves at least {wanted:.1f}. The runtime is wrong on "
            "this model. Use another engine."
        )


def _nudge(x: Tensor) -> Tensor:
    return x * _NUDGE if x.is_floating_point() else x


def _worst_db(expected: Any, actual: Any) -> float:
    """The lowest agreement of the float tensors in two results, where both are finite."""
    worst = float("inf")
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        if isinstance(a, Tensor) and a.is_floating_point():
            known = a.isfinite() & b.isfinite()
            worst = min(worst, sqnr_db(a[known], b[known]) if a[known].any() else worst)
    return worst
