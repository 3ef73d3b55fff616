"""Which rounded tensors cause the error at the outputs: all of them from one float pass, and its gradients.

With y the outputs and d the error that rounding makes at a tensor, that tensor alone moves the outputs by J d. For
random signs v, the mean of (v . J d)^2 over v is |J d|^2, and v . J is what backward gives at the tensor:

    noise(tensor, grid) = mean over v of (grad(v . y) . (round(x, grid) - x))^2 / |y|^2

So a pass forward and a few backward give the noise of every tensor, on every grid that it might have instead. Without
gradients (code that detaches, or runs without them) a tensor counts by its own noise, beside its own power.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fxquant.capture.compare import copy_inputs
from fxquant.flows.calibrate import run_batch
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.learned.autograd_context import Saved
from fxquant.precision.outputs import named_tensors

PROBES = 2  # random signs for each batch

Rounds = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class _Site:
    """What is added up at one tensor, for each of its grids: over the calls of a pass, and over the passes."""

    grids: Mapping[str, Rounds]
    rows: int | None = None  # of a tensor that has a row for each sample; None where any row is one by itself
    now: dict[str, Tensor] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    power: float = 0.0
    calls: int = 0
    seen: tuple[Tensor, list[Tensor]] | None = None


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
    sites: Mapping[str, tuple[nn.Module, Mapping[str, Rounds]]],
    batches: Sequence[object],
    outputs: Sequence[str] | None = None,
) -> dict[str, Noise]:
    """Return the noise of each site at the outputs of these names, or at all.

    A site is a module of `model` that lets a float tensor pass, and ways to round that tensor.
    """
    found = {name: _Site(grids) for name, (_, grids) in sites.items()}
    activations = [found[name] for name, (module, _) in sites.items() if isinstance(module, FakeQuant)]
    anchor = torch.zeros((), requires_grad=True)  # what makes autograd visit every site
    replaced: list[nn.Module] = []
    try:
        for name, (module, _) in sites.items():
            module.__dict__["forward"] = _probing(found[name], anchor)
            replaced.append(module)
        generator = torch.Generator().manual_seed(0)
        for batch in batches:
            for site in activations:
                site.rows = count_samples(batch)
            _probe(model, batch, found, anchor, outputs, generator, len(batches))
    finally:
        for module in replaced:
            del module.__dict__["forward"]
    return {name: Noise(by_grid=_shares(site), own=_own(site), calls=site.calls) for name, site in found.items()}


def count_samples(batch: object) -> int:
    """Tell how many samples a batch has, as its first tensor tells."""
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim())
    return next((int(leaf.shape[0]) for leaf in tensors), 1)


def _own(site: _Site) -> dict[str, float]:
    return {name: noise / site.power if site.power else 0.0 for name, noise in site.own.items()}


def _shares(site: _Site) -> dict[str, float]:
    return {name: site.noise.get(name, 0.0) for name in site.grids}


def _probing(site: _Site, anchor: Tensor) -> Callable[..., Tensor]:
    def forward(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
            return x
        site.calls += 1
        with torch.no_grad():
            site.power += float(x.square().sum(dtype=torch.float64))
            if site.seen is None or site.seen[0] is not x:  # a weight comes again with every time step
                site.seen = x, [rounds(x) - x for rounds in site.grids.values()]
            lost = site.seen[1]
            for name, each in zip(site.grids, lost, strict=True):
                site.own[name] = site.own.get(name, 0.0) + float(each.square().sum(dtype=torch.float64))
        probed: Tensor = _Probe.apply(x, anchor, site, *lost)  # type: ignore[no-untyped-call]
        return probed

    return forward


class _Probing(Saved, Protocol):
    site: _Site


class _Probe(torch.autograd.Function):
    """Lets a tensor pass; on the way back, adds up what its rounding does to the loss."""

    @staticmethod
    def forward(ctx: _Probing, x: Tensor, anchor: Tensor, site: _Site, *lost: Tensor) -> Tensor:
        ctx.site = site
        ctx.save_for_backward(*lost)
        return x.clone()  # no view: code after it may write in place

    @staticmethod
    def backward(ctx: _Probing, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lost, (grad,) = ctx.saved_tensors, grads
        site: _Site = ctx.site
        by_row = grad.dim() > 1 and site.rows in (None, grad.shape[0])
        for name, each in zip(site.grids, lost, strict=True):
            moved = (grad * each).flatten(1).sum(1) if by_row else (grad * each).sum()
            before = site.now.get(name)
            if before is None:
                site.now[name] = moved.double()
            elif before.shape == moved.shape:
                site.now[name] = before + moved.double()
            else:  # calls with other sizes: all samples together
                site.now[name] = before.sum() + moved.double().sum()
        return grad, None, None, *(None for _ in lost)


def _probe(
    model: nn.Module,
    batch: object,
    found: Mapping[str, _Site],
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
        for site in found.values():
            for name, moved in site.now.items():
                share = float(moved.square().sum()) / (PROBES * len(answer) * count)
                site.noise[name] = site.noise.get(name, 0.0) + share
            site.now.clear()


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
        power = float(values.detach().square().sum(dtype=torch.float64))
        signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
        if power > 0:
            loss = loss + (values * signs).sum().to(loss) / power**0.5
    return loss
