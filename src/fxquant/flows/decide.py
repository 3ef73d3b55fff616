"""Decide what runs in int8, as often as one likes, from one calibration.

    prepared model  =  float graph (folded)  +  answers of the rules  +  statistics by tensor
    decide          :  prepared model, target, rules  ->  the graph with quantizers, which have what calibration saw
    adapt           :  prepared model, target  ->  the same, once algorithms have rewritten its float graph

`watch` makes the first out of a float model: it asks `decide` what each of the targets would need, and watches the
union. A model for training is decided when it is prepared, since training shapes it for one target.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fxquant.config.rules import Rules
from fxquant.config.target import Target
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.engines.table import as_engine
from fxquant.flows.pipelines import ADAPT, DECIDE, DECIDE_QAT, WATCH
from fxquant.graph.amendments import Amendments
from fxquant.graph.clone_tree import clone_tree, let_go
from fxquant.graph.context import Context, Needs
from fxquant.graph.notes import PrepareRequest
from fxquant.graph.region import Region, preparation_of, regions
from fxquant.graph.run_passes import run_passes
from fxquant.passes.watch import needs


def decide(
    prepared: nn.Module,
    *,
    target: Target | None = None,
    engine: Engine | Native | str | None = None,
    rules: Rules | None = None,
    amendments: Amendments | None = None,
    in_place: bool = False,
    runs: bool = True,
) -> nn.Module:
    """Return the model with quantizers in place, in the state of observing. It shares its tensors with `prepared`.

    The target is `target`; or what the model was prepared for; or what `engine` asks for. `rules` go before those that
    it was prepared with, except in standalone modules that have their own; `amendments` change what comes out of both.
    If it is only looked at, it need not be one that `runs`.
    Batch norms stay folded as they are. Regions of which all is decided (from prepare_qat_fx or freeze) stay so.
    """
    if not any(is_open(region) for _, region in regions(prepared)):
        return prepared
    decided = prepared if in_place else clone_tree(prepared)

    def context(region: Region) -> Context:
        return Context(
            target=_target(region, target, engine),
            rules=None if _request(region).own_rules else rules,
            amendments=amendments or Amendments(),
        )

    run_passes(decided, DECIDE, context, only=is_open, runs=runs)
    _close(decided)
    return decided


def adapt(prepared: nn.Module, *, engine: Engine) -> nn.Module:
    """Return a calibrated model whose algorithms have rewritten the float graph, to be decided for one engine often.

    Equalization and smoothing run the graph on the inputs that calibration kept. Their result depends on no amendment.
    """
    adapted = clone_tree(prepared)
    run_passes(adapted, ADAPT, lambda region: Context(target=_target(region, None, engine)), only=is_open, runs=False)
    return adapted


def watch_for(model: nn.Module, targets: Iterable[Target]) -> nn.Module:
    """Watch, in place, what decisions for any of these targets need to know of the tensors of a float model.

    What comes back is a copy that is decided for the first of them, to be looked at.
    """
    wanted: dict[str, list[Needs]] = {}
    first: nn.Module | None = None
    for target in targets:
        made = decide(model, target=target, runs=False)
        for path, region in regions(made):
            wanted.setdefault(path, []).append(needs(region, Context(target=target)))
        if first is None:
            first = made
        elif made is not model:
            let_go(made)
    of_region = {id(region): wanted[path] for path, region in regions(model)}
    run_passes(model, WATCH, lambda region: Context(needs=of_region[id(region)]), only=is_open)
    assert first is not None
    return first


def decide_for_training(model: nn.Module, target: Target) -> nn.Module:
    """Put the quantizers and blocks of one target into a float model, in place, to be trained."""
    run_passes(model, DECIDE_QAT, Context(target=target, training=True), only=is_open)
    _close(model)
    return model


def leaves_target_open(model: nn.Module) -> bool:
    """Tell whether the engine is to say what a prepared model, or a part of it, is decided for."""
    return any(is_open(region) and _request(region).target is None for _, region in regions(model))


def is_open(region: Region) -> bool:
    """Tell whether nothing is decided about a region yet."""
    return preparation_of(region).request is not None


def _close(model: nn.Module) -> None:
    for _, region in regions(model):
        preparation_of(region).request = None


def _target(region: Region, target: Target | None, engine: Engine | Native | str | None) -> Target:
    return target or _request(region).target or as_engine(engine).target()


def _request(region: Region) -> PrepareRequest:
    request = preparation_of(region).request
    assert isinstance(request, PrepareRequest)
    return request
