"""Biases corrected one after the other: each takes back what the ops before it do, as they are rounded.

    b' = b + E[y] - E[y made of rounded tensors, with all biases before as they are now]

Rounding moves means by more than the weights say: where most values of a tensor lie within one step of its grid, as
behind a silu with a long tail, all of them move the same way. A bias that is stored in a few bits is rounded then. That
moves means as well, by what is known beforehand, and the next bias takes it back. Finer grids are tried for it, which
cut the largest biases off: those often belong to channels that a relu shuts anyway, or that a clip holds.

A mean is of all places alike. Where most of them do not count, as with sentences that are padded to one length or where
a relu shuts a channel, it has little to say: all stays as it was unless the outputs come clearly nearer to the float
graph's, on other inputs than those that the means are of. One pass in float, and one and a third as it is quantized,
over inputs that calibration kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fxquant.algorithms.grids import QuantizerGrids
from fxquant.algorithms.lockstep import Lockstep, Outputs
from fxquant.algorithms.replay import Replay
from fxquant.algorithms.rounded import rounded
from fxquant.algorithms.some_calls import Calls, count_judges, ways_to_call
from fxquant.algorithms.take_rest import input_means, take_rest
from fxquant.algorithms.weighted_op import WeightedOp, with_own_bias
from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.notes import note_of
from fxquant.graph.preparation import FloatMeans
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.ranges import given_or_own_range
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.candidates import choice_of
from fxquant.passes.look_again import kept_inputs, watch_inputs

_NEARER = 0.9  # of the distance from float, which biases have to leave at most
_FINER = 2  # grids that are tried beside that on which all of a bias fits


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBias(Algorithm):
    """Correct the biases of linears and convolutions by about `samples` inputs, if calibration kept as many.

    It goes after what chooses weights. Modules that are called several times are left as they are, and so are all if
    the outputs come no nearer to those of the float graph, for a third of the inputs that is kept apart for that.
    """

    makes_up_for_biases: ClassVar[bool] = True
    samples: int = 32

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"MeasuredBias(samples={self.samples!r}): expected a positive whole number, such as 32.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_inputs(region) if any(True for _ in _meant(region, context)) else ()

    @torch.no_grad()
    def adapt(self, region: Region, context: Context) -> None:
        *faster, plain = ways_to_call(kept_inputs(region), self.samples)
        for calls in faster:
            with contextlib.suppress(Exception):  # the size of a batch, or a layout, is part of the graph
                preparation_of(region).float_means = _means(region, context, calls)
                return
        preparation_of(region).float_means = _means(region, context, plain)

    @torch.no_grad()
    def apply(self, region: Region, context: Context) -> None:
        true, preparation_of(region).float_means = preparation_of(region).float_means, None
        meant = [op for op in _meant(region, context) if true is not None and op.node.name in true.by_node]
        if true is None or not meant:
            return
        tensors, biases = rounded(region, context), {op.node: _Bias(region, op, true.weights) for op in meant}
        for node, bias in biases.items():
            tensors.setdefault(str(node.target), {})["bias"] = bias.stored
        runner = Replay(region, QuantizerGrids(region).quantize, tensors)
        judges = count_judges(true.calls)
        before, after = Lockstep(region, runner, true.calls[-judges:]), Lockstep(region, runner, true.calls)
        for _ in before:
            pass
        for node in after:
            if node in biases:
                biases[node].correct(after, true.by_node[node.name])
        wanted, made = true.outputs[-judges:], after.outputs()[-judges:]
        if _distance(made, wanted) < _NEARER * _distance(before.outputs(), wanted):
            for bias in biases.values():
                bias.put()


def _means(region: Region, context: Context, calls: Calls) -> FloatMeans | None:
    """Run calls of the float graph."""
    run = Lockstep(region, Replay(region), calls)
    means: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for node in run:
        op = context.ops.of_node(node, region)
        if op is not None and op.has_weight and op.channels_at is not None and node.op == "call_module":
            means[node.name] = run.means(node, op)
            choice, weight = choice_of(node), getattr(region.get_submodule(str(node.target)), "weight", None)
            if choice is not None and choice.qconfig is not None and isinstance(choice.qconfig.bias, Spec):
                weights.update({node.name: weight.detach()} if isinstance(weight, Tensor) else {})
    if not means:
        return None
    return FloatMeans(by_node=means, weights=weights, outputs=run.outputs(), calls=tuple(map(tuple, calls)))


def _agreed(shifts: Tensor, *, judged: bool) -> Tensor:
    """Return the mean of shifts over samples (the first axis), less where these do not agree: m - (error of m)^2 / m.

    That is what is expected of the true mean, by James and Stein. Of one sample nothing is known but itself: what it
    says is taken if others judge it, else biases would only make up for all that this sample lost.
    """
    mean = shifts.mean(0)
    if len(shifts) < 2:
        return mean if judged else torch.zeros_like(mean)
    error = shifts.var(0) / len(shifts)
    return mean * (1 - error / mean.square().clamp_min(1e-30)).clamp_min(0)


def _distance(made: Outputs, true: Outputs) -> float:
    """Of all outputs from the true ones, each beside its size."""
    total = 0.0
    for these, those in zip(zip(*made, strict=True), zip(*true, strict=True), strict=True):
        lost = sum(float((one - other).square().sum()) for one, other in zip(these, those, strict=True))
        total += lost / max(sum(float(other.square().sum()) for other in those), 1e-30)
    return total


def _meant(region: Region, context: Context) -> Iterator[WeightedOp]:
    """Ops with a bias of their own, whose module is called once."""
    ops = list(with_own_bias(region, context))
    calls = [op.module for op in ops]
    return (op for op in ops if calls.count(op.module) == 1)


class _Bias:
    """A bias: its values, and those that are stored, which are others on a grid of a few bits."""

    def __init__(self, region: Region, op: WeightedOp, weights: Mapping[str, Tensor]) -> None:
        self._region, self._float = region, weights.get(op.node.name)
        self._weight: Tensor | None = None  # another than it has
        note, values = note_of(op.node), op.module._parameters["bias"]
        assert note is not None and values is not None
        self._op, self._note = op, note
        self._spec = note.bias if isinstance(note.bias, Spec) else None
        self.values = values.detach()
        self.stored = self._rounded(self.values, self._spec)

    def correct(self, run: Lockstep, means: Tensor) -> None:
        """Let what the op made in a run have these means, as far as samples agree, and remember what gives that."""
        node, op = self._op.node, self._op.op
        shifts = means - run.means(node, op)
        # what few bits of the biases before it lost is no chance
        shift = _agreed(shifts, judged=run.judged) if self._spec is None else shifts.mean(0)
        wanted = self.values + shift.to(self.values)
        if not bool(torch.isfinite(wanted).all()):
            return
        tried = [(spec, self._rounded(wanted, spec)) for spec in self._grids(wanted)]
        losses = [run.loss(node, op, wanted - self.stored, made - self.stored) for _, made in tried if len(tried) > 1]
        self._spec, made = tried[losses.index(min(losses)) if losses else 0]
        if self._spec is not None and self._float is not None:
            self._let_weight_take((wanted - made).double().cpu(), self._float, run)
        run.add(node, op, made - self.stored)
        self.values = wanted if self._weight is None else made

    def _let_weight_take(self, rest: Tensor, wanted: Tensor, run: Lockstep) -> None:
        """Let some integers of the weight go a step on, for what the bias cannot give."""
        op = self._op
        means = input_means(op, run.inputs(op))
        self._weight = take_rest(self._region, op, wanted, means, rest)
        if self._weight is not None:
            run.change(op, self._weight - op.weight.detach())

    def put(self) -> None:
        """Store the values."""
        self._op.module._parameters["bias"] = nn.Parameter(self.values, requires_grad=False)
        if self._weight is not None:
            self._op.module._parameters["weight"] = nn.Parameter(self._weight, requires_grad=False)
        if self._spec is not None:
            self._op.node.meta["note"] = dataclasses.replace(self._note, bias=self._spec)
            if type(self._op.module) is QatBlock:
                self._op.module.__dict__["bias_spec"] = self._spec

    def _rounded(self, values: Tensor, spec: Spec | None) -> Tensor:
        if spec is None:
            return values
        ends = given_or_own_range(values.float(), spec)
        return fake_quantize(values.float(), *choose_qparams(*ends, spec), spec).to(values.dtype)

    def _grids(self, values: Tensor) -> list[Spec | None]:
        """That on which all values fit, and finer ones, if zero is in the middle of it; None is no grid."""
        if self._spec is None or not self._spec.symmetric:
            return [self._spec]
        scale = float(choose_qparams(*given_or_own_range(values.float(), self._spec), self._spec)[0])
        ends = [self._spec.quant_max * scale / 2**step for step in range(_FINER + 1)]
        return [self._spec.with_(observer="fixed", range=(-end, end)) for end in ends]
