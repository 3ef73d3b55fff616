"""Let weights take what a bias of a few bits cannot: some integers go a step on, until the mean of the output is right.

    J(q) = e C e^T + (r - d m)^2        e = w - s q: what the weight loses;  C, m: covariance and mean of the inputs
                                        r: what the mean of the output lacks;  d: what the steps add to the weight

Steps of one integer are taken one after the other in each row, that which lowers J most first, until none does. What
loses half a step may as well be rounded the other way, so means are nearly free where many inputs have some.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fxquant.algorithms.grams import patches_of
from fxquant.algorithms.round_by import spread
from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.graph.region import Region
from fxquant.numerics.affine import dequantize, quantize
from fxquant.numerics.observers.gram import Gram
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.watch import seen

_MOST = 100  # steps in a row
_DAMPING = 0.01  # of the mean of C's diagonal


@torch.no_grad()
def take_rest(region: Region, op: WeightedOp, wanted: Tensor, means: Tensor, rest: Tensor) -> Tensor | None:
    """Return the fixed weight of an op with some integers a step on; None where nothing is known of its inputs.

    `wanted` is the weight in float, `means` are those of the inputs as they are now, by feature, and `rest` is what the
    mean of each channel lacks.
    """
    block, watcher = op.module, seen(region, op.tensor, patches_of(op))
    moments = watcher.moments() if isinstance(watcher, Gram) else None
    if moments is None or type(block) is not QatBlock or not block.weight_fq.frozen:
        return None
    second, before = (each.cpu() for each in moments)
    covariance = second - before.unsqueeze(2) * before.unsqueeze(1)
    damping = _DAMPING * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(0)
    covariance += torch.diag_embed(damping.unsqueeze(1).expand(before.shape))
    grid, spec, shape = block.weight_fq, op.spec, (len(before), -1, before.shape[1])
    weight = op.weight.detach().float()
    integers = quantize(weight, grid.scale, grid.zero_point, spec)
    steps = spread(grid.scale, weight, spec)
    told = (integers, steps, wanted.float() - weight)
    values, step, lost = (each.cpu().double().reshape(shape) for each in told)
    ends = spec.quant_min, spec.quant_max
    made = take_steps(values, step, lost, covariance, means, rest.reshape(shape[:2]), ends)
    chosen = made.reshape(integers.shape).to(integers)
    return dequantize(chosen, grid.scale, grid.zero_point, spec).to(op.weight.dtype)


def take_steps(
    values: Tensor, steps: Tensor, lost: Tensor, covariance: Tensor, means: Tensor, rest: Tensor, ends: tuple[int, int]
) -> Tensor:
    """Return integers (groups, rows, features) that cost no more than these."""
    values, rest, means = values.clone(), rest.clone(), means.unsqueeze(1)
    slope = lost @ covariance
    price = steps.square() * (covariance.diagonal(dim1=1, dim2=2).unsqueeze(1) + means.square())
    for _ in range(_MOST):
        pull = slope + rest.unsqueeze(2) * means
        way = pull.sign()
        gains = 2 * steps * pull.abs() - price
        gains = gains.masked_fill((values + way < ends[0]) | (values + way > ends[1]), 0.0)
        gain, at = gains.max(2, keepdim=True)
        move = torch.where(gain > 0, way.gather(2, at), 0.0)
        if not bool(move.any()):
            break
        values.scatter_add_(2, at, move)
        by = move * steps.gather(2, at)
        slope -= by * covariance.gather(1, at.expand(-1, -1, covariance.shape[2]))
        rest -= (by * means.expand(values.shape).gather(2, at)).squeeze(2)
    return values


def input_means(op: WeightedOp, inputs: Iterable[Tensor]) -> Tensor:
    """Return the mean of what each number of a row of the weight is multiplied with: (groups, features).

    It is what the mean of the output changes by with that number.
    """
    module = plain_of(op)
    shape, count = (op.groups, *op.weight.shape[1:]), 0
    found = torch.zeros(shape, dtype=torch.float64)
    for x in inputs:
        none = torch.zeros(op.groups, device=x.device)
        with torch.enable_grad():
            weight = torch.zeros(shape, device=x.device, requires_grad=True)
            made = functional_call(module, {"weight": weight, "bias": none}, (x.detach().float(),))
            (grad,) = torch.autograd.grad(made.sum(), weight)
        found += grad.cpu().double()
        count += made.numel() // op.groups
    return (found / max(count, 1)).reshape(op.groups, -1)


def plain_of(op: WeightedOp) -> nn.Module:
    """Return the module of an op, which rounds nothing."""
    return op.module.plain() if type(op.module) is QatBlock else op.module
