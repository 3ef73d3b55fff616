"""Which rounded tensors cause the error at the outputs: all of them from one float pass, and its gradients.

With y the outputs and d the error that rounding makes at a tensor, that tensor alone moves the outputs by J d. For
random signs v, the mean of (v . J d)^2 over v is |J d|^2, and v . J is what backward gives at the tensor:

    noise(tensor, grid) = mean over v of (grad(v . y) . (round(x, grid) - x))^2 / |y|^2

So a pass forward and a few backward give the noise of every tensor. The gradients are kept until it is known which make
most of it: for these, every grid that they might have instead is tried by the same formula. Without gradients (code
that detaches, or runs without them) a tensor counts by its own noise, beside its own power.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fxquant.capture.run_untraced import copy_inputs
from fxquant.flows.calibrate import run_batch
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.learned.autograd_context import Saved
from fxquant.precision.outputs import named_tensors

NOW = "now"  # the name of the grid that a tensor has
PROBES = 2  # random signs for each batch

Rounds = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class _Pass:
    """The calls of a source in one batch: what it made, and the gradients of each probe, which counts `share`."""

    rows: int
    share: float = 0.0
    calls: list[tuple[Tensor, list[Tensor]]] = field(default_factory=list)


@dataclass(slots=True)
class _Source:
    """What is added up at one tensor: over the calls of a pass, and over the passes, kept if it is an activation."""

    rounds: Rounds
    is_activation: bool
    now: Tensor | None = None
    noise: float = 0.0
    own: float = 0.0
    power: float = 0.0
    calls: int = 0
    seen: tuple[Tensor, Tensor] | None = None
    passes: list[_Pass] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The noise of one tensor at the outputs, as a share of their power, by the names of its grids.

    `own` is the noise at the tensor itself, of its power; `calls`, how often it was made, in all batches.
    """

    by_grid: Mapping[str, float]
    own: Mapping[str, float]
    calls: int = 0


def attribute(
    model: nn.Module,
    sources: Mapping[str, tuple[nn.Module, Rounds]],
    batches: Sequence[object],
    outputs: Sequence[str] | None = None,
    further: Callable[[Mapping[str, Noise]], Mapping[str, Mapping[str, Rounds]]] = lambda noise: {},
) -> dict[str, Noise]:
    """Return the noise of each source at the outputs of these names, or at all.

    A source is a module of `model` that lets a float tensor pass, and the way in which that is rounded. From what comes
    of it, `further` tells for which activations other ways are tried, by the names of these.
    """
    found = {name: _Source(rounds, isinstance(module, FakeQuant)) for name, (module, rounds) in sources.items()}
    anchor = torch.zeros((), requires_grad=True)  # what makes autograd visit every source
    replaced: list[nn.Module] = []
    try:
        for name, (module, _) in sources.items():
            module.__dict__["forward"] = _probing(found[name], anchor)
            replaced.append(module)
        generator = torch.Generator().manual_seed(0)
        for batch in batches:
            for source in found.values():
                source.passes.append(_Pass(count_samples(batch)))
            _probe(model, batch, found, anchor, outputs, generator, len(batches))
    finally:
        for module in replaced:
            del module.__dict__["forward"]
    noise = {name: _noise(source) for name, source in found.items()}
    for name, grids in further(noise).items():
        noise[name] = _with(noise[name], found[name], grids)
    return noise


def _noise(source: _Source) -> Noise:
    own = source.own / source.power if source.power else 0.0
    return Noise(by_grid={NOW: source.noise}, own={NOW: own}, calls=source.calls)


@torch.no_grad()
def _with(noise: Noise, source: _Source, grids: Mapping[str, Rounds]) -> Noise:
    """Return the noise of a source on other grids as well."""
    by_grid, own = dict(noise.by_grid), dict(noise.own)
    for name, rounds in grids.items():
        by_grid[name], energy = 0.0, 0.0
        for each in source.passes:
            totals = list[Tensor | None]([None] * PROBES)
            for x, grads in each.calls:
                lost = _lost(x, rounds)
                energy += _energy(lost)
                for probe, grad in enumerate(grads):
                    totals[probe] = _moved(totals[probe], grad, lost, each.rows)
            by_grid[name] += each.share * sum(float(total.square().sum()) for total in totals if total is not None)
        own[name] = energy / source.power if source.power else 0.0
    return Noise(by_grid=by_grid, own=own, calls=noise.calls)


def count_samples(batch: object) -> int:
    """Tell how many samples a batch has, as its first tensor tells."""
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim())
    return next((int(leaf.shape[0]) for leaf in tensors), 1)


def _energy(x: Tensor) -> float:
    """Return the sum of squares; in float64, which takes thirty times as long, where float32 cannot hold it."""
    norm = float(torch.linalg.vector_norm(x))
    return norm**2 if 1e-15 < norm < 1e15 else float(x.double().square().sum())


def _probing(source: _Source, anchor: Tensor) -> Callable[..., Tensor]:
    def forward(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
            return x
        source.calls += 1
        with torch.no_grad():
            source.power += _energy(x)
            if source.seen is None or source.seen[0] is not x:  # a weight comes again with every time step
                source.seen = x, _lost(x, source.rounds)
            lost = source.seen[1]
            source.own += _energy(lost)
        probed: Tensor = _Probe.apply(x, anchor, source, lost)  # type: ignore[no-untyped-call]
        return probed

    return forward


def _lost(x: Tensor, rounds: Rounds) -> Tensor:
    made = rounds(x)
    return made - x if made.data_ptr() == x.data_ptr() else made.sub_(x)  # new memory takes longer than the sum


class _Probing(Saved, Protocol):
    source: _Source
    grads: list[Tensor]


class _Probe(torch.autograd.Function):
    """Lets a tensor pass; on the way back, adds up what its rounding does to the loss."""

    @staticmethod
    def forward(ctx: _Probing, x: Tensor, anchor: Tensor, source: _Source, lost: Tensor) -> Tensor:
        ctx.source, ctx.grads = source, []
        ctx.save_for_backward(lost)
        made = x.clone()  # no view: code after it may write in place
        if source.is_activation:
            source.passes[-1].calls.append((x.detach(), ctx.grads))
        return made

    @staticmethod
    def backward(ctx: _Probing, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (lost,), (grad,), source = ctx.saved_tensors, grads, ctx.source
        source.now = _moved(source.now, grad, lost, source.passes[-1].rows if source.is_activation else None)
        if source.is_activation:
            ctx.grads.append(grad.to(torch.bfloat16))  # half of the memory, and enough for a sum
        return grad, None, None, None


def _moved(before: Tensor | None, grad: Tensor, lost: Tensor, rows: int | None) -> Tensor:
    """Add what a rounding moves the loss by, of each sample where the tensor has a row for each, to what was before.

    Without `rows`, any row is one by itself.
    """
    by_row = grad.dim() > 1 and rows in (None, grad.shape[0])
    moved = ((grad * lost).flatten(1).sum(1) if by_row else (grad * lost).sum()).double()
    if before is None:
        return moved
    # of calls with other sizes, all samples together
    return before + moved if before.shape == moved.shape else before.sum() + moved.sum()


def _probe(
    model: nn.Module,
    batch: object,
    found: Mapping[str, _Source],
    anchor: Tensor,
    outputs: Sequence[str] | None,
    generator: torch.Generator,
    count: int,
) -> None:
    answer = _answer(model, batch, outputs)
    for _ in range(PROBES if answer else 0):
        try:
            torch.autograd.grad(_loss(answer, generator), anchor, retain_graph=True, allow_unused=True)
        except RuntimeError:  # the code writes in place to what gradients need
            return
        share = 1 / (PROBES * len(answer) * count)
        for source in found.values():
            if source.now is not None:
                source.noise += share * float(source.now.square().sum())
            source.now, source.passes[-1].share = None, share


def _answer(model: nn.Module, batch: object, outputs: Sequence[str] | None) -> list[Tensor]:
    """Return the outputs that gradients lead to."""
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # code that turns tensors into numbers is warned about under gradients
            found = dict(named_tensors(run_batch(model, copy_inputs(batch))))
    except RuntimeError:  # the code writes in place where gradients forbid it
        with torch.no_grad():
            run_batch(model, copy_inputs(batch))
        return []
    return [y for name, y in found.items() if (outputs is None or name in outputs) and y.requires_grad]


@torch.enable_grad()
def _loss(answer: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return the outputs, each by its own power, with random signs."""
    loss = torch.zeros(())
    for tensor in answer:
        values = torch.where(torch.isfinite(tensor.detach()), tensor, 0.0)
        power = _energy(values.detach())
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
        if power > 0:
            loss = loss + (values * signs).sum().to(loss) / power**0.5
    return loss
