"""Statistics by tensor: what a decided graph needs to know, the watching of it, and the handing over afterwards.

    needs     a decided graph   ->  which tensors, and what of each (an observer, a statistic of an algorithm)
    watch     the float graph   ->  the same with a call beside each tensor; the tensors themselves go on as they were
    unwatch   a watched graph   ->  the float graph
    recall    a decided graph   ->  its quantizers have what was seen; what is for algorithms stays

A tensor goes by the name of its node in the float graph, which no decision changes ("float_name").
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx, nn

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError, StageError
from fxquant.graph.algorithm import Statistic
from fxquant.graph.context import Context, Needs
from fxquant.graph.nodes import last_input
from fxquant.graph.notes import STATISTICS
from fxquant.graph.paths import find_module, free_path
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics import statistics
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.table import Observer
from fxquant.numerics.observers.watcher import Watcher
from fxquant.numerics.statistics import Statistics, kept_for, label, without_repeats
from fxquant.passes.attention_products import computed, of_part


def needs(region: Region, context: Context) -> Needs:
    """Return what the quantizers and algorithms of a decided graph want to see."""
    found: Needs = []
    tensors = observed_tensors(region)
    for node, module in _callers(region):
        if (kept := kept_for(module.spec)) is not None:
            together = kept.observer == "custom"
            found.append((tensors[module.name] if together else (float_name(region, node),), kept))
    for algorithm in preparation_of(region).algorithms:
        found += [(_names(each.tensor), each.statistic) for each in algorithm.watch(region, context)]
    return found


def observed_tensors(region: Region) -> dict[str, tuple[str, ...]]:
    """Return the tensors that each quantizer of a decided graph observes."""
    found: dict[str, dict[str, None]] = {}
    for node, module in _callers(region):
        found.setdefault(module.name, {})[float_name(region, node)] = None
    return {name: tuple(tensors) for name, tensors in found.items()}


def calibrated_quantizers(region: Region) -> Iterator[tuple[FakeQuant, tuple[str, ...]]]:
    """Yield the quantizers of a decided graph whose ranges are found in calibration, each with its tensors."""
    modules = {module.name: module for _, module in _callers(region)}
    for name, tensors in observed_tensors(region).items():
        if not modules[name].spec.dynamic:
            yield modules[name], tensors


def name_observed(region: Region, context: Context) -> None:
    """Note the tensors of each quantizer, so that it can load what a calibrated model saw of them."""
    preparation_of(region).observed = observed_tensors(region)


def watch(region: Region, context: Context) -> None:
    """Put a call beside each tensor of which a target may need the range, or an algorithm something else."""
    path, made = free_path(region, STATISTICS), Statistics()
    region.add_module(path, made)
    preparation_of(region).statistics_path = path
    together: dict[tuple[str, ...], list[Spec | Statistic]] = {}
    for tensors, what in (need for each in context.needs for need in each):
        together.setdefault(tensors, []).append(what)
    watched = preparation_of(region).watched = {}
    for tensors, asked in together.items():
        for name, module in _watchers("_and_".join(tensors), asked):
            if name in made:
                raise ConfigError(
                    f"two observers of your own are to watch {' and '.join(tensors)} for the same grid. Give the rules "
                    "that meet there one factory."
                )
            made[name], watched[name] = module, tensors
            seen_by = [watched_tensor(region, path, tensor) for tensor in tensors]
            for args in [tuple(seen_by)] if isinstance(module, Watcher) else [(node,) for node in seen_by]:
                with region.graph.inserting_after(last_input(max(args))):
                    region.graph.call_module(f"{path}.{name}", args)
    made.train(region.training)


def watched_tensor(region: Region, path: str, tensor: str) -> fx.Node:
    """Return the node of a tensor. What computes one that has none is put at `path`, among the statistics."""
    op, name = of_part(tensor)
    at = f"{path}.{tensor}"
    node: fx.Node = next(node for node in region.graph.nodes if node.name == op or node.target == at)
    if not name or node.target == at:
        return node
    module, operands = computed(node, name)
    if module is None:
        return operands[0]
    region.get_submodule(path).add_module(tensor, module)
    with region.graph.inserting_before(node):
        return region.graph.call_module(at, operands)


def unwatch(region: Region, context: Context) -> None:
    """Remove the calls of `watch`. What they have seen stays until `recall`."""
    path = preparation_of(region).statistics_path
    for node in list(reversed(region.graph.nodes)):
        if path and node.op == "call_module" and str(node.target).startswith(f"{path}."):
            region.graph.erase_node(node)


def recall(region: Region, context: Context) -> None:
    """Hand what was seen to the quantizers of a decided graph; what algorithms watched stays for them."""
    path = preparation_of(region).statistics_path
    if not path:
        return
    kept = region.get_submodule(path)
    assert isinstance(kept, Statistics)
    tensors = observed_tensors(region)
    for _, module in _callers(region):
        if (wanted := kept_for(module.spec)) is not None and module.name in tensors:
            statistics.recall(module, _seen(kept, tensors.pop(module.name), wanted))
    for name in [name for name, module in kept.items() if not isinstance(module, Watcher)]:
        del kept[name]
    if not kept:
        forget(region)


def seen(region: Region, tensor: str | tuple[str, ...], statistic: Statistic) -> Watcher | None:
    """Return what calibration kept of a tensor for an algorithm.

    None if it was not watched, or nothing was calibrated.
    """
    path = preparation_of(region).statistics_path
    found = find_module(region, f"{path}.{'_and_'.join(_names(tensor))}_{statistic.label}") if path else None
    return found if isinstance(found, Watcher) else None


def forget(region: Region) -> None:
    """Drop what calibration kept."""
    if preparation_of(region).statistics_path:
        region.delete_submodule(preparation_of(region).statistics_path)
        preparation_of(region).statistics_path, preparation_of(region).watched = "", None


def _names(tensor: str | tuple[str, ...]) -> tuple[str, ...]:
    return (tensor,) if isinstance(tensor, str) else tensor


def _seen(kept: Statistics, tensors: tuple[str, ...], wanted: Spec) -> list[Observer]:
    found = kept.of(tensors, wanted)
    if found is None:
        raise StageError(
            f"not all of the tensors {', '.join(tensors)} were watched in calibration ({label(wanted)}): the rules and "
            "targets that the model was prepared with had no need for it. Prepare and calibrate it with these."
        )
    return found


def _watchers(name: str, asked: list[Spec | Statistic]) -> Iterator[tuple[str, nn.Module]]:
    for spec in without_repeats(each for each in asked if isinstance(each, Spec)):
        yield f"{name}_{label(spec)}", FakeQuant(spec, name)
    for statistic in dict.fromkeys(each for each in asked if not isinstance(each, Spec)):
        yield f"{name}_{statistic.label}", statistic.make()


def _callers(region: Region) -> Iterator[tuple[fx.Node, FakeQuant]]:
    """Yield the quantizers of a decided graph that observe something, with their calls."""
    path = preparation_of(region).quantizer_path
    for node in region.graph.nodes:
        if str(node.target).startswith(f"{path}.") and node.kwargs.get("observe", True):
            module = region.get_submodule(str(node.target))
            if isinstance(module, FakeQuant):
                yield node, module


def float_name(region: Region, node: fx.Node) -> str:
    """Return the tensor of a node of a decided graph, by its name in the float graph: quantizers let it pass."""
    source = node
    while source.op == "call_module" and isinstance(region.get_submodule(str(source.target)), FakeQuant):
        earlier = source.args[0]
        assert isinstance(earlier, fx.Node)
        source = earlier
    return str(source.meta.get("float_name", source.name))
