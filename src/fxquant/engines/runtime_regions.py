"""The regions of a model in another runtime.

They stay where they are, lowered to oneDNN, and hand the calls that are like their example's to the runtime. So a model
of several regions runs there too, attributes and state_dict stay, and calls with other sizes have an engine.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn

from fxquant.core import compat
from fxquant.core.graph import Region, clone_tree, regions
from fxquant.core.ops import OPS
from fxquant.core.verify import run_passes
from fxquant.engines.agreement import check_agreement
from fxquant.engines.example import example_of
from fxquant.engines.lower import WEIGHTED, lower
from fxquant.engines.replay import Replay
from fxquant.engines.runtime_module import RuntimeModule
from fxquant.errors import ConfigError, FxQuantError

log = logging.getLogger("fxquant")

_PRODUCTS = (*WEIGHTED, "matmul", "attention")


class RegionRunner:
    """Runs a region in a runtime, where a call is like the example's; the lowered graph takes the others."""

    def __init__(self, runtime: RuntimeModule, lowered: Replay) -> None:
        self.runtime = runtime
        self.engine = runtime.engine
        self.lowered = lowered
        self.warned = self.failed = False

    def __call__(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.failed and compat.plain_mode() and not region._forward_hooks and not region._forward_pre_hooks:
            try:
                tensors = self.runtime.signature.flatten(args, kwargs)
                if (reason := self.runtime.refuses(tensors)) is None:
                    return self.runtime.run(tensors)
            except ConfigError as error:  # other arguments than the example had
                reason = str(error)
            except FxQuantError as error:  # by the runtime itself, which is then not asked again
                self.failed, reason = True, str(error)
            if not self.warned:
                self.warned = True
                name = region._region.path or type(region).__name__
                log.warning("%r runs on onednn, not %s, when called like this: %s", name, self.engine, reason)
        return self.lowered(region, args, kwargs)


def outermost(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """The regions that are in no other one, with their paths."""
    last = None
    for path, region in regions(model):
        if last is None or (last and not path.startswith(f"{last}.")):
            last = path
            yield path, region


def run_regions(model: nn.Module, kind: type[RuntimeModule]) -> nn.Module:
    """Lower a converted model, in place, and give its regions runtimes. A warning tells where none could be.

    A region of one product stays with oneDNN if there are larger ones: a runtime gains nothing on it.
    """
    runtimes: dict[str, RuntimeModule] = {}
    failed: dict[str, FxQuantError] = {}
    found = dict(outermost(model))
    large = {path: region for path, region in found.items() if _count_products(region) > 1}
    for path, region in (large or found).items():
        try:
            runtimes[path] = make_runtime(_by_itself(region), kind)
        except FxQuantError as error:
            failed[path] = error
    if failed and not runtimes:
        raise next(iter(failed.values()))
    for path, reason in failed.items():
        warnings.warn(f"module {path!r} runs on onednn, not {kind.engine}. {reason}", stacklevel=4)
    run_passes(model, (("lower", lower),), "converted")
    for path, runtime in runtimes.items():
        runtime.alone = len(runtimes) == 1
        state = found[path]._region
        state.runner = RegionRunner(runtime, state.runner)
    return model


def _count_products(region: Region) -> int:
    ops = (OPS.of_node(node, region) for node in region.graph.nodes)
    return sum(op is not None and op.kind in _PRODUCTS for op in ops)


def make_runtime(region: Region, kind: type[RuntimeModule]) -> RuntimeModule:
    """One graph in a runtime that was seen to compute the same."""
    example = example_of(region)
    if not example:
        raise ConfigError("The example inputs did not reach it, so its own are not known.")
    runtime = kind(region, (), example_kwargs=example)
    check_agreement(runtime, region, example, kind.engine)
    return runtime


def _by_itself(region: Region) -> Region:
    """A copy that does not run its code in float where the graph does not cover a call."""
    alone = clone_tree(region)
    assert isinstance(alone, Region)
    alone._region.path = ""
    return alone
