"""Choose between integers of one weight by the outputs of the graph, all else in float, on inputs that were kept.

error(Q)  =  sum over outputs of  |y with Q - y|^2 / |y|^2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.node import Argument, Target
from torch.utils._pytree import tree_leaves

from fxquant.algorithms.replay import Replay
from fxquant.algorithms.round_by import Chosen
from fxquant.algorithms.shift_bias import shifted
from fxquant.algorithms.some_calls import count_judges
from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.affine import dequantize

_CALLS = 2  # of a few samples each


class ByOutputs:
    """The float graph of a region, whatever of its weights is fixed meanwhile. Nothing is measured without inputs.

    The inputs are some of those by which MeasuredBias finds its corrections, none of those that judge these.
    """

    def __init__(self, region: Region, ops: Iterable[WeightedOp]) -> None:
        true = preparation_of(region).float_means
        self._runner = _FloatGraph(region, ops if true is not None else ())
        fitted = 0 if true is None else max(1, len(true.calls) - count_judges(true.calls))
        step = max(1, fitted // _CALLS)
        self._calls = () if true is None else true.calls[:fitted:step][:_CALLS]
        self._places = () if true is None else range(-len(true.calls), 0, step)  # as Lockstep counts
        self._wanted = () if true is None else true.outputs[:fitted:step][:_CALLS]

    @torch.no_grad()
    def best(self, op: WeightedOp, mean: Tensor, tried: Sequence[Chosen], zero_point: Tensor) -> Chosen:
        """Return what brings the outputs nearest to float, for inputs of the op with this mean; else the first."""
        if len(tried) < 2 or not self._calls:
            return tried[0]
        errors = [self._error(op, mean, dequantize(q, scale, zero_point, op.spec)) for q, scale in tried]
        return tried[errors.index(min(errors))]

    def _error(self, op: WeightedOp, mean: Tensor, made: Tensor) -> float:
        weight, bias = op.weight.detach().float(), getattr(op.module, "bias", None)
        given = {"weight": made.to(op.weight.dtype)}
        if isinstance(bias, Tensor):
            rows = (weight - made).reshape(len(mean), -1, mean.shape[1]) @ mean.to(weight).unsqueeze(2)
            given["bias"] = shifted(bias, rows.flatten(), keep_zeros=op.keeps_zeros)
        total = 0.0
        for place, call, wanted in zip(self._places, self._calls, self._wanted, strict=False):
            self._runner.call = place
            for made_out, true in zip(self._runner.outputs(str(op.node.target), given, call), wanted, strict=True):
                total += float((made_out - true).square().sum() / true.square().sum().clamp_min(1e-30))
        return total


class _FloatGraph(Replay):
    def __init__(self, region: Region, ops: Iterable[WeightedOp]) -> None:
        super().__init__(region, whole=True)
        self._floats: dict[str, tuple[nn.Module, dict[str, Tensor]]] = {}
        for op in ops:
            values = {name: value.detach() for name, value in op.module._parameters.items() if value is not None}
            self._floats.setdefault(str(op.node.target), (op.module, values))
        self._given: tuple[str, dict[str, Tensor]] = "", {}

    def outputs(self, path: str, given: dict[str, Tensor], call: Sequence[object]) -> list[Tensor]:
        """Return the floating outputs with other parameters of one module."""
        self._given = path, given
        made = self.run(*call, enable_io_processing=False)
        return [x for x in tree_leaves(made) if isinstance(x, Tensor) and x.is_floating_point()]

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        if target not in self._floats:
            return super().call_module(target, args, kwargs)
        module, values = self._floats[str(target)]
        path, given = self._given
        return functional_call(module, {**values, **given} if target == path else values, args, kwargs)
