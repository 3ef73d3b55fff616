"""The forward hooks of modules: which have some, which a graph does not call, and how they go to another module."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fxquant.graph.lowering import reference_graph
from fxquant.graph.paths import find_module, is_within, join_path
from fxquant.graph.region import Region, preparation_of, regions, stage_of
from fxquant.graph.region_parts import Stage

HOOK_TABLES = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


def has_forward_hooks(module: nn.Module) -> bool:
    """Tell whether code of the user's runs before or after a call of this module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def move_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give `new` the hooks of `old`, which loses them; the tables themselves may be shared with others, and stay."""
    for table in HOOK_TABLES:
        new.__dict__[table] = old.__dict__[table]
        old.__dict__[table] = OrderedDict()


def warn_of_traced_hooks(model: nn.Module, captured: nn.Module) -> None:
    """Tell of hooks that became part of a graph: what they return is in it, what they note down is not."""
    found = []
    for path, region in regions(captured):
        called = [str(node.target) for node in region.graph.nodes if node.op == "call_module"]
        traced = unheard_hooks(region, called)
        preparation_of(region).traced_hooks = frozenset(key for keys in traced.values() for key in keys)
        found += [join_path(path, at) for at in traced]
        source = find_module(model, path)  # none where a region stands for parameters, or for parts of a stock module
        if source is not None and _has_own_hooks(source) and not has_forward_hooks(region):
            found.append(path or "the model")
    if found:
        warnings.warn(
            f"hooks of {', '.join(map(repr, dict.fromkeys(found)))} were traced: what they return is part of the "
            "graph, but they are not called any more, so what they record is not seen. Hooks of single ops, and of "
            "modules that the custom config names as non-traceable, are called.",
            stacklevel=5,
        )


def unheard_hooks(region: Region, called: Sequence[str]) -> dict[str, list[int]]:
    """Return the hooks of modules that are neither called nor inside of one that is: their keys, by path.

    Those that were traced are left out, since what they return is in the graph.
    """
    known, found = preparation_of(region).traced_hooks, {}
    for path, module in region.named_modules():
        if path and _has_own_hooks(module) and not any(is_within(path, other) for other in called):
            keys = [key for key in (*module._forward_hooks, *module._forward_pre_hooks) if key not in known]
            found.update({path: keys} if keys else {})
    return found


def _has_own_hooks(module: nn.Module) -> bool:
    """Tell whether a module has hooks of the user's.

    Exported programs come with some of torch's, and models of transformers with those that gather the outputs that a
    call asks for: they are in the graph, if the example asks for any.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(not str(getattr(hook, "__module__", "")).startswith(("torch.", "transformers.")) for hook in hooks)


def warn_of_lost_hooks(model: nn.Module, caller: str) -> None:
    """Tell of hooks of int8 ops, which are code and so not in a file."""
    found = []
    for path, region in regions(model):
        if stage_of(region) is not Stage.CONVERTED:
            continue
        read = {str(node.target).rpartition(".")[0] for node in reference_graph(region).nodes if node.op == "get_attr"}
        owners = ((at, find_module(region, at)) for at in sorted(read) if at)
        found += [join_path(path, at) for at, owner in owners if owner is not None and has_forward_hooks(owner)]
    if found:
        warnings.warn(
            f"{caller}: the hooks of {', '.join(map(repr, found))} are Python, and not in what is written. If they "
            "change values, put that into the model's code, and quantize again.",
            stacklevel=3,
        )
