"""Hooks on the modules of a lowered region. They are run as in the plain graph, so while there are any, that is run.

A kernel takes the relu after a convolution in, and tensors between kernels lie as kernels like: a hook on that relu
would not be called, or see something else. The plain graph calls every module without a weight that the float model
calls.
"""

from __future__ import annotations

import logging
import types

from torch import nn

from fxquant.core import compat
from fxquant.core.graph import Region
from fxquant.core.ops import OPS
from fxquant.engines.watch import called_modules
from fxquant.passes.fill_grids import filled_graph

log = logging.getLogger("fxquant")


class Hooks:
    """Whether someone listens in on a region. Looked at before each call, so it counts rather than searches."""

    def __init__(self) -> None:
        self.made: int | None = -1
        self.found = False
        self.told = False
        self._paths: list[str] | None = None

    def listen(self, region: Region) -> bool:
        """Whether there are hooks. If they are on modules that kernels stand for, the region runs its plain graph."""
        made = compat.hooks_made()
        if made is None or made != self.made or self.found:  # to remove one is not counted
            self._look(region)
            self.made = made
        return self.found

    def _look(self, region: Region) -> None:
        if self._paths is None:
            self._paths = _stock_paths(region)
        parts = [part for path in self._paths for part in region.get_submodule(path).modules()]
        inside = compat.has_global_hooks() or any(map(_has_hooks, parts))
        if not inside:
            region.__dict__.pop("forward", None)
        elif "forward" not in region.__dict__:
            region.__dict__["forward"] = _plain_forward(region)
            if not self.told:
                self.told = True
                log.warning("%r runs its plain graph, without kernels, while modules in it have hooks", _name(region))
        self.found = inside or any(map(_has_hooks, called_modules(region)))


def _name(region: Region) -> str:
    return region._region.path or region._region.user_class.__name__


def _stock_paths(region: Region) -> list[str]:
    """The modules that the plain graph calls and kernels may stand for."""
    assert region._region.reference is not None
    called = [target for op, _, target, *_ in region._region.reference["rows"] if op == "call_module"]
    return [path for path in dict.fromkeys(called) if OPS.of(type(region.get_submodule(path))) is not None]


def _plain_forward(region: Region) -> types.MethodType:
    plain = type(Region(nn.Module(), filled_graph(region)))
    return types.MethodType(plain.forward, region)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
