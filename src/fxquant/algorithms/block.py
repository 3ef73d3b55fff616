"""What reconstruction learns of one segment: the rounding of its weights, its biases, the scales of its activations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fxquant.algorithms.fix_weight import fix_weight
from fxquant.algorithms.gptq import choose_by
from fxquant.algorithms.grids import QuantizerGrids
from fxquant.algorithms.narrow import narrow
from fxquant.algorithms.replay import Replay, Tensors
from fxquant.algorithms.round_by import spread
from fxquant.algorithms.segments import Segment
from fxquant.algorithms.soft_rounding import SoftRounding
from fxquant.algorithms.weighted_op import WeightedOp, untied_ops
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_range import find_weight_qparams
from fxquant.passes.find_quantizer import quantizer_of

_ROUNDING_RATE, _SCALE_RATE, _BIAS_RATE = 0.03, 2e-3, 2e-3

Drop = Callable[[Tensor, Tensor], Tensor]
Seen = Mapping[nn.Module, tuple[Tensor, Tensor]]  # the moments of the inputs of ops, by their module


class Block:
    """A segment while it is learned, and after. Weights of modules that other segments call too are only rounded."""

    def __init__(self, region: Region, context: Context, segment: Segment, grids: QuantizerGrids, seen: Seen) -> None:
        self.region, self.segment, self.grids = region, segment, grids
        calls, inside = (
            Counter(str(node.target) for node in nodes if node.op == "call_module")
            for nodes in (region.graph.nodes, segment.nodes)
        )
        nodes = set(segment.nodes)
        found: dict[str, WeightedOp] = {}
        for op in untied_ops(region, context):
            path = str(op.node.target)
            if op.node in nodes and inside[path] == calls[path] and type(op.module) is not QatBlock:
                found.setdefault(path, op)
        self.ops = list(found.values())
        self.bias = {path: bias for path, op in found.items() if (bias := _bias(op)) is not None}
        self.grid: dict[str, tuple[Tensor, Tensor]] = {}
        self.rounding: dict[str, SoftRounding] = {}
        for path, op in found.items():
            self._start(path, op, seen.get(op.module))
        self.shift = {path: torch.zeros_like(bias, requires_grad=True) for path, bias in self.bias.items()}
        self.unit = {path: float(bias.abs().mean()) + 1e-3 for path, bias in self.bias.items()}
        self.factor = {
            each.name: torch.zeros_like(grids.found[each.name][0], requires_grad=True)
            for each in grids.inside(segment)
            if each.spec.scale == "float"
        }
        self.chosen = {path: soft.nearest() for path, soft in self.rounding.items()}
        quantizers = (quantizer_of(region, node) for node in segment.nodes)
        self.least_bits = min((each.spec.bits for each in quantizers if each is not None), default=32)  # of activations

    @property
    def learns(self) -> bool:
        return bool(self.ops)

    @torch.no_grad()
    def _start(self, path: str, op: WeightedOp, moments: tuple[Tensor, Tensor] | None) -> None:
        """Begin with what GPTQ makes of a weight, where the moments of its input are known, else with the nearest."""
        weight, integers = op.weight.detach().float(), None
        scale, zero_point = find_weight_qparams(weight, op.spec, f"{path}.weight")
        if moments is None:
            scale = narrow(weight, scale, zero_point, op.spec)
        else:
            integers, scale, moved = choose_by(op, scale, zero_point, *moments)
            if path in self.bias:
                self.bias[path] = self.bias[path] + moved
        self.grid[path] = scale, zero_point
        step, zero = (spread(each, weight, op.spec) for each in (scale, zero_point))
        self.rounding[path] = SoftRounding(weight, step, zero, op.spec, integers)

    def parameters(self) -> list[dict[str, object]]:
        """For an optimizer; what `cools` gets smaller steps in the end."""
        groups = (
            (_ROUNDING_RATE, False, [soft.v for soft in self.rounding.values()]),
            (_SCALE_RATE, True, list(self.factor.values())),
            (_BIAS_RATE, True, list(self.shift.values())),
        )
        return [{"params": params, "lr": rate, "cools": cools} for rate, cools, params in groups if params]

    def undecided(self, sharpness: float) -> Tensor:
        """Return the share of weights, softly, that are neither up nor down."""
        total = sum(soft.v.numel() for soft in self.rounding.values())
        parts = [soft.undecided(soft.h(), sharpness) * soft.v.numel() for soft in self.rounding.values()]
        return torch.stack([part.cpu() for part in parts]).sum() / total

    def soft(self, drop: Drop) -> Replay:
        """Return the segment as it is learned."""

        def quantize(quantizer: FakeQuant, x: Tensor) -> Tensor:
            learned = self.factor.get(quantizer.name)
            quantized = self.grids.straight_through(quantizer, x, None if learned is None else learned.exp())
            return drop(x, quantized)

        return Replay(self.region, quantize, self._tensors({path: soft.h() for path, soft in self.rounding.items()}))

    def hard(self) -> Replay:
        """Return the segment as it is stored."""
        return Replay(self.region, self.grids.quantize, self._tensors(self.chosen))

    def _tensors(self, h: dict[str, Tensor]) -> Tensors:
        found: dict[str, dict[str, Tensor]] = {}
        for op in self.ops:
            path = str(op.node.target)
            found[path] = {"weight": self.rounding[path].values(h[path]).to(op.weight.dtype)}
            if path in self.shift:
                moved = self.bias[path] + self.unit[path] * self.shift[path]
                found[path]["bias"] = moved.to(op.weight.dtype)
        return found

    @torch.no_grad()
    def harden(self) -> None:
        """Take what was learned."""
        self.chosen = {path: soft.decided() for path, soft in self.rounding.items()}
        self.before = {name: self.grids.found[name][0] for name in self.factor}
        for name, factor in self.factor.items():
            self.grids.set(name, self.grids.found[name][0] * factor.exp())

    def give_up(self) -> None:
        """Go back to the nearest integers, and to the ranges and biases of before."""
        self.chosen = {path: soft.nearest() for path, soft in self.rounding.items()}
        for name, scale in self.before.items():
            self.grids.set(name, scale)
        self.shift = {path: torch.zeros_like(shift) for path, shift in self.shift.items()}

    @torch.no_grad()
    def fix(self) -> None:
        """Store integers and biases in the graph."""
        tensors = self._tensors(self.chosen)
        for op in self.ops:
            path = str(op.node.target)
            if path in self.shift:
                op.module.bias = nn.Parameter(tensors[path]["bias"].detach(), requires_grad=False)
            fix_weight(self.region, op, self.rounding[path].integers(self.chosen[path]), *self.grid[path])


def _bias(op: WeightedOp) -> Tensor | None:
    bias = getattr(op.module, "bias", None)
    return bias.detach().float() if isinstance(bias, Tensor) else None
