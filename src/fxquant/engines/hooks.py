"""Hooks on the modules of a lowered region. They are run as in the plain graph, so while there are any, that is run.

A kernel takes the relu after a convolution in, and tensors between kernels lie as kernels like: a hook on that relu
would not be called, or see something else. The plain graph calls every module that the float model calls: the
convolutions and linears too, which are the modules that hold their integers.
"""

from __future__ import annotations

import logging
import warnings

from torch import fx, nn

from fxquant.engines.made_from import called_modules
from fxquant.engines.read_qdq import weight_path
from fxquant.graph import torch_compat
from fxquant.graph.hooks import unheard_hooks
from fxquant.graph.lowering import filled_graph, reference_graph, run_instead, run_own_graph, runs_own_graph
from fxquant.graph.paths import is_within
from fxquant.graph.region import Region, region_name
from fxquant.ops.table import OPS

log = logging.getLogger("fxquant")

_MAKE_WEIGHTS = (*torch_compat.DEQUANTIZE_OPS, torch_compat.UNPACK)


class Hooks:
    """Whether someone listens in on a region. Looked at before each call, so it counts rather than searches."""

    def __init__(self, *, told: bool = False) -> None:
        self.made: int | None = -1
        self.found = False
        self.told = told  # that the region is slower for them
        self._paths: list[str] | None = None
        self._unheard: set[str] = set()  # of which was told

    def listen(self, region: Region) -> bool:
        """Whether there are hooks. If they are on modules that kernels stand for, the region runs its plain graph."""
        made = torch_compat.hooks_made()
        if made is None or made != self.made or self.found:  # to remove one is not counted
            self._look(region)
            self.made = made
        return self.found

    def _look(self, region: Region) -> None:
        if self._paths is None:
            self._paths = _stock_paths(region)
        parts = [part for path in self._paths for part in region.get_submodule(path).modules()]
        inside = torch_compat.has_global_hooks() or any(map(_has_hooks, parts))
        if not inside:
            run_own_graph(region)
        elif runs_own_graph(region):
            run_instead(region, type(Region(nn.Module(), _calling(region))).forward)
            if not self.told:
                self.told = True
                log.warning(
                    "%r runs its plain graph, without kernels, while modules in it have hooks", region_name(region)
                )
        self.found = inside or any(map(_has_hooks, called_modules(region)))
        self._tell_of_unheard(region)

    def _tell_of_unheard(self, region: Region) -> None:
        """Say once of each module whose hooks nothing calls: its code is part of a graph, or it does nothing."""
        called = [str(node.target) for node in reference_graph(region).nodes if node.op == "call_module"]
        unheard = [path for path in unheard_hooks(region, [*called, *(self._paths or ())]) if path not in self._unheard]
        self._unheard.update(unheard)
        if unheard:
            warnings.warn(
                f"hooks of {', '.join(map(repr, unheard))} are not called: the graph of {region_name(region)!r} has "
                "the ops of such a module, or left it out, and no call of it. Hook the module of a single op "
                f"({_example(self._paths, unheard[0])}), or prepare the model with the module named as standalone: it "
                "is quantized as a unit then, which is called.",
                stacklevel=10,
            )


def _stock_paths(region: Region) -> list[str]:
    """Return the modules that the float model calls and the graph, or its kernels, may stand for."""
    graph = reference_graph(region)
    called = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    stock = [path for path in dict.fromkeys(called) if OPS.of(type(region.get_submodule(path))) is not None]
    return [*stock, *dict.fromkeys(path for path in _weighted(region, graph).values())]


def _weighted(region: Region, graph: fx.Graph) -> dict[fx.Node, str]:
    """Return the products with integer weights, with the paths of the modules that hold these."""
    found = {}
    for node in graph.nodes:
        op = OPS.of_node(node, region) if node.op == "call_function" else None
        path = weight_path(region, node.args[1]) if op is not None and op.is_product and len(node.args) > 1 else None
        if path is not None and not any(isinstance(arg, fx.Node) for arg in node.args[3:]):
            found[node] = path
    return found


def _calling(region: Region) -> fx.Graph:
    """Return the plain graph, with products as calls of modules."""
    graph = filled_graph(region)
    for node, path in _weighted(region, graph).items():
        with graph.inserting_before(node):
            call = graph.call_module(path, node.args[:1])
        call.meta.update(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op != "get_attr" and node.target not in _MAKE_WEIGHTS)
    return graph


def _example(paths: list[str] | None, unheard: str) -> str:
    """Return a module that is called, inside of the one whose hooks are not if there is one."""
    within = [path for path in paths or () if is_within(path, unheard)]
    return repr([*(paths or ("the whole",)), *within][-1])


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
