"""Block-wise reconstruction: learn rounding, biases and activation scales of a block by the block's output.

    min |block(x', Q(W), b, s) - float block(x)|^2  +  regularizer of the rounding

from what GPTQ finds, block by block, each on what the blocks before it make as they are then (BRECQ, Li et al., 2021).
Where activations have few bits, half of the numbers of each, drawn anew in each step, are not rounded, and half of the
block's input is that of the float model: the result does well beyond the inputs that it saw (QDrop, Wei et al., 2022).
Rounding to 8 bits is small, and the block does better on what the blocks before it make. What is worse on inputs that
were held out than before is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, fx

from fxquant.algorithms.block import Block, Drop
from fxquant.algorithms.grams import grams, patches_of, watch_grams
from fxquant.algorithms.grids import QuantizerGrids
from fxquant.algorithms.replay import Replay, Streams, Values, chunks_of, loss_between
from fxquant.algorithms.rounded import rounded
from fxquant.algorithms.segments import segments
from fxquant.algorithms.soft_rounding import sharpness
from fxquant.algorithms.weighted_op import WeightedOp, untied_ops
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.notes import remark
from fxquant.graph.region import Region
from fxquant.passes.look_again import watch_inputs
from fxquant.progress import following

_PRESSURE, _FREE = 4.0, 0.1  # of the regularizer, beside the loss at the start; share of the steps without it
_FEW_BITS = 8  # activations of fewer are dropped
_MOST_FEATURES = 4096  # in the rows of weights that start from GPTQ; others start from the nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconstruction(Algorithm):
    """Reconstruct each block by `steps` of gradient descent on `rows` samples each.

    `drop` is the share of activations that are left unrounded meanwhile, in blocks that have some of less than 8 bits;
    0 is plain BRECQ. Weights that another algorithm fixed stay as they are. `progress` shows a bar, in a terminal.
    """

    chooses_weights: ClassVar[bool] = True
    steps: int = 200
    rows: int = 32
    drop: float = 0.5
    progress: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rows < 1:
            raise ConfigError(f"Reconstruction(steps={self.steps!r}, rows={self.rows!r}): expected positive numbers.")
        if not 0 <= self.drop < 1:
            raise ConfigError(f"Reconstruction(drop={self.drop!r}): expected a share from 0 to below 1, such as 0.5.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return [*watch_inputs(region), *watch_grams(self._grams(region, context))]

    def apply(self, region: Region, context: Context) -> None:
        parts, grids = segments(region, context), QuantizerGrids(region)
        chunks = chunks_of(region, parts, self.rows)
        if not chunks or not rounded(region, context):
            return
        streams, runner = Streams(region, chunks), Replay(region)
        dice = torch.Generator().manual_seed(0)
        found = [(op.module, gram.moments()) for op, gram in grams(region, self._grams(region, context))]
        moments = {module: known for module, known in found if known is not None}
        for index, segment in enumerate(following(parts, "reconstructing", wanted=self.progress)):
            with torch.no_grad():
                true = [runner.step(segment, values, at) for at, values in enumerate(streams.true)]
            block = Block(region, context, segment, grids, moments)
            if block.learns:
                self._learn(block, streams, true, dice)
            with torch.no_grad():
                made = [block.hard().step(segment, values, at) for at, values in enumerate(streams.made)]
            block.fix()
            streams.advance(parts[index + 1 :], true, made)
        grids.fix()

    def _grams(self, region: Region, context: Context) -> Iterator[WeightedOp]:
        return (op for op in untied_ops(region, context) if patches_of(op).features <= _MOST_FEATURES)

    def _learn(self, block: Block, streams: Streams, true: list[Values], dice: torch.Generator) -> None:
        held = max(1, len(true) // 8) if len(true) > 1 else 0
        tests = range(len(true) - held, len(true)) if held else range(len(true))
        before = _loss(block, streams, true, tests)
        unit = max(before, 1e-12)
        drop = self.drop if block.least_bits < _FEW_BITS else 0.0
        optimizer = torch.optim.Adam(block.parameters())
        rates = [group["lr"] for group in optimizer.param_groups]
        with torch.enable_grad():
            for count in range(self.steps):
                done = count / self.steps
                chunk = count % max(1, len(true) - held)
                values = _mixed(streams.made[chunk], streams.true[chunk], drop, dice)
                made = block.soft(_dropping(drop, dice)).step(block.segment, values, chunk)
                loss = loss_between(made, true[chunk]) / unit
                if done >= _FREE:
                    loss = loss + _PRESSURE * block.undecided(sharpness((done - _FREE) / (1 - _FREE)))
                _step(optimizer, loss)
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * done)) if group["cools"] else rate
        block.harden()
        after = _loss(block, streams, true, tests)
        if after >= before:
            block.give_up()
        _say(block, before, after)


def _dropping(share: float, dice: torch.Generator) -> Drop:
    """Leave a share of the numbers of each activation unrounded."""

    def drop(x: Tensor, quantized: Tensor) -> Tensor:
        return torch.where(_draw(x, dice) < share, x, quantized)

    return drop if share else lambda x, quantized: quantized


def _draw(x: Tensor, dice: torch.Generator) -> Tensor:
    return torch.rand(x.shape, generator=dice).to(x.device)


def _mixed(made: Values, true: Values, share: float, dice: torch.Generator) -> Values:
    """Return the values that a block takes: of float tensors a share is as in float."""
    found: dict[fx.Node, object] = {}
    for node, value in made.items():
        mixes = share and isinstance(value, Tensor) and value.is_floating_point()
        found[node] = torch.where(_draw(value, dice) < share, true[node], value) if mixes else value
    return found


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step, by gradients of what is learned alone: the weights of the graph may be the user's."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter.grad = gradient
    optimizer.step()


@torch.no_grad()
def _loss(block: Block, streams: Streams, true: list[Values], chunks: Iterable[int]) -> float:
    """Of what a block makes with rounded weights and activations."""
    losses = [float(loss_between(block.hard().step(block.segment, streams.made[i], i), true[i])) for i in chunks]
    return sum(losses) / len(losses)


def _say(block: Block, before: float, after: float) -> None:
    kept = after < before
    gain = f"{10 * math.log10(before / after):+.1f} dB" if before > 0 and after > 0 else "no loss"
    names = [str(op.node.target) for op in block.ops]
    for op in block.ops:
        others = f" with {len(names) - 1} others" if len(names) > 1 else ""
        remark(op.node, f"reconstructed{others}: {gain}" if kept else f"not reconstructed: {gain} on inputs held out")
