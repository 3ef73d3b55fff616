"""Refit: choose weights again, one op after the other, for inputs as the ops before make them.

    cost(Q) = tr((V - Q) C (V - Q)^T)            V, C: two_inputs.py

GPTQ rounds a weight as if its inputs were those of the float graph. By then, weights and scales before it have lost
something, and part of that can be told from x': where 40 channels were widened to 240, what lies outside of those 40
dimensions is noise.

A third of the inputs is kept apart. Rows that do no better on them, behind the clip that follows, stay as they were.
Biases take the means; scales stay. Two passes over inputs that calibration kept, one of them in float.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.node import Argument, Target

from fxquant.algorithms.bias_grid import bias_grid
from fxquant.algorithms.fix_weight import fix_weight
from fxquant.algorithms.gptq import choose_rows
from fxquant.algorithms.grams import patches_of
from fxquant.algorithms.grids import QuantizerGrids
from fxquant.algorithms.lockstep import Lockstep
from fxquant.algorithms.replay import Quantize, Replay, Tensors
from fxquant.algorithms.rounded import rounded
from fxquant.algorithms.shift_bias import shifted
from fxquant.algorithms.some_calls import Calls, in_parts
from fxquant.algorithms.two_inputs import Inputs
from fxquant.algorithms.weighted_op import WeightedOp, untied_ops
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.notes import remark
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.affine import dequantize
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_range import quantize_weight
from fxquant.passes.look_again import kept_inputs, watch_inputs

_DAMPING = 0.01
_MOST_FEATURES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Refit(Algorithm):
    """Choose the integers of weights with one scale again, by at most `samples` inputs that calibration kept.

    It goes after all else that chooses weights and biases. Modules that are called several times stay as they are.
    """

    chooses_weights: ClassVar[bool] = True
    samples: int = 48

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"Refit(samples={self.samples!r}): expected a positive whole number, such as 48.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_inputs(region) if any(True for _ in _meant(region, context)) else ()

    def adapt(self, region: Region, context: Context) -> None:
        """Remember weights and biases while they are in float."""
        found: dict[str, dict[str, Tensor]] = {}
        for node in region.graph.nodes:
            op = context.ops.of_node(node, region)
            if op is not None and op.has_weight and node.op == "call_module":
                given = region.get_submodule(str(node.target))._parameters
                found[str(node.target)] = {name: value.detach() for name, value in given.items() if value is not None}
        preparation_of(region).float_tensors = found

    @torch.no_grad()
    def apply(self, region: Region, context: Context) -> None:
        floats, preparation_of(region).float_tensors = preparation_of(region).float_tensors, None
        kept = kept_inputs(region)
        meant = [op for op in _meant(region, context) if str(op.node.target) in (floats or {})]
        if floats is None or not meant or not kept:
            return
        for calls in (in_parts(kept, self.samples), kept):
            with contextlib.suppress(Exception):  # the size of a batch, or a layout, is part of the graph
                chosen = _chosen(region, meant, {**rounded(region, context)}, floats, calls)
                break
        else:
            return
        for each in chosen:
            each.put(region)


class _Plain(Replay):
    """Runs a graph whose blocks round nothing: their weights and biases are given."""

    def __init__(self, region: Region, quantize: Quantize | None, tensors: Tensors) -> None:
        super().__init__(region, quantize, tensors)
        blocks = {path: region.get_submodule(path) for path in tensors}
        self._plain = {path: block.plain() for path, block in blocks.items() if type(block) is QatBlock}

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        plain = self._plain.get(str(target))
        if plain is None:
            return super().call_module(target, args, kwargs)
        return functional_call(plain, dict(self.tensors[str(target)]), args, kwargs)


def _meant(region: Region, context: Context) -> Iterator[WeightedOp]:
    """Ops with one scale for the whole weight, whose module is called once."""
    ops = list(untied_ops(region, context))
    calls = [op.module for op in ops]
    for op in ops:
        one_scale = op.spec.granularity == "per_tensor" and patches_of(op).features <= _MOST_FEATURES
        if one_scale and calls.count(op.module) == 1:
            yield op


def _chosen(
    region: Region,
    meant: list[WeightedOp],
    tensors: dict[str, dict[str, Tensor]],
    floats: Tensors,
    calls: Calls,
) -> list[_Chosen]:
    """Go through a graph as it is quantized so far, and in float; `tensors` are what of weights is rounded."""
    found = {op.node: _Chosen(op) for op in meant}
    for node, each in found.items():
        tensors[str(node.target)] = each.tensors()
    there = {path for path, _ in region.named_modules()}
    wanted = {path: given for path, given in floats.items() if path in there}
    made = Lockstep(region, _Plain(region, QuantizerGrids(region).quantize, tensors), calls)
    true = Lockstep(region, _Plain(region, None, wanted), calls)
    for node, _ in zip(made, true, strict=True):
        if node in found:
            found[node].refit(floats[str(node.target)], made, true)
    return [*found.values()]


class _Chosen:
    """The integers of a weight and its bias, as they are stored, before and after."""

    def __init__(self, op: WeightedOp) -> None:
        weight, bias = op.weight.detach().float(), op.module._parameters.get("bias")
        self.op, self.gain = op, 0.0
        if type(op.module) is QatBlock:
            self.integers, self.scale, self.zero_point = op.module.weight_fq.quantize(weight)
        else:
            self.integers, self.scale, self.zero_point = quantize_weight(weight, op.spec, f"{op.node.target}.weight")
        self.grid = None if bias is None else bias_grid(op, bias)
        self.bias = None if bias is None else bias.detach()
        if self.grid is not None and bias is not None:
            self.bias = self.grid.rounded(bias)

    def tensors(self) -> dict[str, Tensor]:
        found = {"weight": self._values(self.integers)}
        return found if self.bias is None else {**found, "bias": self.bias}

    def _values(self, integers: Tensor) -> Tensor:
        return dequantize(integers, self.scale, self.zero_point, self.op.spec).to(self.op.weight.dtype)

    def refit(self, given: Mapping[str, Tensor], made: Lockstep, true: Lockstep) -> None:
        """Choose the rows again, for a weight and bias in float, and bring what the op made in the run up to that."""
        op, before = self.op, self.integers
        inputs = Inputs.of(op, made.inputs(op), true.inputs(op))
        if inputs is None:
            return
        wanted, bias, second = inputs.wanted(op, given, self.bias, self.grid)
        tried, _ = choose_rows(wanted, second, self.scale, self.zero_point, op.spec, _DAMPING)
        step, jump = self._values(tried) - self._values(before), _difference(bias, self.bias)
        shift = self._shift(made, true)
        lost = made.errors(op, true, shift)
        made.change(op, step)
        made.add(op.node, op.op, jump)
        other = self._shift(made, true)
        left = made.errors(op, true, other)
        better = (left < lost).to(step.device)
        rows = better.view(-1, *[1] * (step.dim() - 1))
        made.change(op, torch.where(rows, torch.zeros_like(step), -step))
        shift = torch.where(better, other + jump, shift)
        made.add(op.node, op.op, shift - jump)
        self.integers = torch.where(rows, tried, before)
        if self.bias is not None:
            self.bias = (self.bias.double() + shift).to(self.bias)
        if bool(better.any()):
            self.gain = 10 * math.log10(float(lost.sum()) / max(float(torch.minimum(lost, left).sum()), 1e-30))

    def _shift(self, made: Lockstep, true: Lockstep) -> Tensor:
        """Return what the bias takes, so that means are those of float; one of a few bits takes nothing."""
        op = self.op
        lacking = (true.means(op.node, op.op) - made.means(op.node, op.op)).mean(0).to(op.weight.device)
        if self.bias is None or self.grid is not None:
            return torch.zeros_like(lacking)
        values = self.bias.double()
        return shifted(values, lacking, keep_zeros=op.keeps_zeros) - values

    def put(self, region: Region) -> None:
        """Store both."""
        op = self.op
        if self.bias is not None:
            op.module.bias = nn.Parameter(self.bias, requires_grad=False)
        if self.grid is not None:
            self.grid.fix(op)
        if type(op.module) is QatBlock:
            op.module.weight = nn.Parameter(self._values(self.integers), requires_grad=False)
        else:
            fix_weight(region, op, self.integers, self.scale, self.zero_point)
        if self.gain > 0:
            remark(op.node, f"refit to what comes before: {self.gain:+.1f} dB at its output")


def _difference(new: Tensor | None, old: Tensor | None) -> Tensor:
    return torch.zeros(1, dtype=torch.float64) if new is None or old is None else new.double() - old.double()
