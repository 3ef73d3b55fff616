"""Modules that stand at several paths of a model stay one: what a pass puts at one of them stands at all.

A graph names a module by one of its paths. The others are there for code that reads them, and for state dicts.
"""

from __future__ import annotations

from torch import nn

from fxquant.graph.paths import find_module, set_submodule
from fxquant.graph.region import Region

Shared = list[tuple[nn.Module, list[str]]]


def shared_modules(region: Region) -> Shared:
    """Return the modules that stand at several paths of a region, each with these."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in region.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return [(module, found) for module, found in paths.items() if len(found) > 1]


def share_again(region: Region, shared: Shared) -> None:
    """Put what took the place of a shared module at its other paths, too, but for those that the graph itself names."""
    named = {str(node.target) for node in region.graph.nodes if node.op == "call_module"} if shared else set()
    for module, paths in shared:
        now = {path: find_module(region, path) for path in paths}
        others = {found for found in now.values() if found is not None and found is not module}
        if len(others) == 1:
            other = others.pop()
            for path, found in now.items():
                if found is module and path not in named:
                    set_submodule(region, path, other)
