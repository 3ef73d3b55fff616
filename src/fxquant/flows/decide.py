"""Decide what runs in int8, as often as one likes, from one calibration.

    prepared model  =  float graph (folded)  +  answers of the rules  +  statistics by tensor
    decide          :  prepared model, target, rules  ->  the graph with quantizers, which have what calibration saw

`watch` makes the first out of a float model: it asks `decide` what each of the targets would need, and watches the
union. A model for training is decided when it is prepared, since training shapes it for one target.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fxquant.core.graph import Region, clone_tree, regions
from fxquant.core.mapping import Rules
from fxquant.core.plan import Request
from fxquant.core.target import Target
from fxquant.core.verify import Pass, run_passes
from fxquant.passes.annotate import annotate
from fxquant.passes.bias_correct import watch_means
from fxquant.passes.boundary import quantize_boundary
from fxquant.passes.choose import choose
from fxquant.passes.custom_modules import mark_custom
from fxquant.passes.insert import insert
from fxquant.passes.insert_blocks import Shared, insert_blocks
from fxquant.passes.split_ops import split_ops
from fxquant.passes.watch import Needs, name_sites, needs, recall, unwatch, watch
from fxquant.targets import by_name, of_engine


def decide(
    prepared: nn.Module,
    *,
    target: Target | None = None,
    engine: str = "onednn",
    rules: Rules | None = None,
    in_place: bool = False,
) -> nn.Module:
    """The model with quantizers in place, in the state of observing. It shares its tensors with `prepared`.

    The target is `target`; or what the model was prepared for; or what `engine` asks for. `rules` go before those that
    it was prepared with, except in standalone modules that have their own. Batch norms stay folded as they are. Regions
    of which all is decided (from prepare_qat_fx or freeze) stay as they are.
    """
    if not any(is_open(region) for _, region in regions(prepared)):
        return prepared
    decided = prepared if in_place else clone_tree(prepared)

    def hardware(region: Region) -> Target:
        return target or _request(region).target or by_name(of_engine(engine))

    def ask(region: Region) -> Region:
        return region if rules is None or _request(region).own_rules else choose(region, rules)

    passes: tuple[tuple[str, Pass], ...] = (
        ("unwatch", unwatch),
        ("choose", ask),
        ("split_ops", lambda region: split_ops(region, hardware(region))),
        ("annotate", lambda region: annotate(region, hardware(region))),
        ("mark_custom", mark_custom),
        ("insert", insert),
        ("watch_means", watch_means),
        ("quantize_boundary", lambda region: _bound(region, hardware(region))),
        ("recall", recall),
    )
    run_passes(decided, passes, "prepared", only=is_open)
    return _closed(decided)


def watch_for(model: nn.Module, targets: Iterable[Target]) -> nn.Module:
    """Watch, in place, what decisions for any of these targets need to know of the tensors of a float model."""
    wanted: dict[str, list[Needs]] = {}
    for target in targets:
        for path, region in regions(decide(model, target=target)):
            wanted.setdefault(path, []).append(needs(region))
    of_region = {id(region): wanted[path] for path, region in regions(model)}
    return run_passes(
        model, (("watch", lambda region: watch(region, of_region[id(region)])),), "prepared", only=is_open
    )


def decide_for_training(model: nn.Module, target: Target) -> nn.Module:
    """Put the quantizers and blocks of one target into a float model, in place, to be trained."""
    shared: Shared = {}
    passes: tuple[tuple[str, Pass], ...] = (
        ("split_ops", lambda region: split_ops(region, target)),
        ("annotate", lambda region: annotate(region, target)),
        ("mark_custom", mark_custom),
        ("insert", lambda region: insert(region, training=True)),
        ("insert_blocks", lambda region: insert_blocks(region, shared)),
        ("quantize_boundary", lambda region: _bound(region, target, training=True)),
        ("name_sites", name_sites),
    )
    run_passes(model, passes, "prepared", only=is_open)
    return _closed(model)


def _bound(region: Region, target: Target, *, training: bool = False) -> Region:
    """Integers at the boundary, where they were asked for."""
    request = _request(region)
    spec = request.boundary or target.activation
    return quantize_boundary(region, [*request.inputs], [*request.outputs], spec.trained() if training else spec)


def leaves_target_open(model: nn.Module) -> bool:
    """Whether the engine is to say what a prepared model, or a part of it, is decided for."""
    return any(is_open(region) and _request(region).target is None for _, region in regions(model))


def is_open(region: Region) -> bool:
    """Whether nothing is decided about a region yet."""
    return region._region.request is not None


def _closed(model: nn.Module) -> nn.Module:
    for _, region in regions(model):
        region._region.request = None
    return model


def _request(region: Region) -> Request:
    request = region._region.request
    assert isinstance(request, Request)
    return request
