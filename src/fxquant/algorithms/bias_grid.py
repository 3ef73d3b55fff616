"""The grid of a bias that is stored in a few bits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.config.spec import Spec
from fxquant.graph.notes import note_of
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.ranges import given_or_own_range
from fxquant.numerics.weights.qat_block import QatBlock


@dataclass(frozen=True, kw_only=True, slots=True)
class BiasGrid:
    """The grid of a bias of a few bits: its scale and zero point, and the spec with its range."""

    scale: Tensor
    zero_point: Tensor
    spec: Spec

    def rounded(self, bias: Tensor) -> Tensor:
        return fake_quantize(bias.detach().float(), self.scale, self.zero_point, self.spec).to(bias.dtype)

    def fix(self, op: WeightedOp) -> None:
        """Let the bias of an op be stored on it, whatever its values are."""
        note = note_of(op.node)
        assert note is not None
        op.node.meta["note"] = dataclasses.replace(note, bias=self.spec)
        if type(op.module) is QatBlock:
            op.module.__dict__["bias_spec"] = self.spec


def bias_grid(op: WeightedOp, bias: Tensor) -> BiasGrid | None:
    """Return the grid of a bias as it is; None if that has no few bits."""
    note = note_of(op.node)
    if note is None or not isinstance(note.bias, Spec):
        return None
    spec = note.bias
    scale, zero_point = choose_qparams(*given_or_own_range(bias.detach().float(), spec), spec)
    low, high = ((end - int(zero_point)) * float(scale) for end in (spec.quant_min, spec.quant_max))
    ends = (-high, high) if spec.symmetric else (low, high)
    return BiasGrid(scale=scale, zero_point=zero_point, spec=spec.with_(observer="fixed", range=ends))
