"""Whether a runtime computes what the quantized graph says, seen before the runtime is used.

Two right results differ, too: sums in another order round some values to the next step, and deep networks make much
of that. So the graph itself is run on inputs and weights changed by less than a step, and the runtime may be off by
little more than what this changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.errors import FxQuantError
from fxquant.graph.paths import join_path
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.grid import Grid

T = TypeVar("T")

log = logging.getLogger("fxquant")

_UP = 1 + 2**-10
_SLACK_DB, _ENOUGH_DB = 6.0, 20.0
_QUANTIZED = (torch.uint8, torch.int8)  # results on a grid; other integers are indices


def check_agreement(
    runtime: Callable[..., object], graph: nn.Module, example: Mapping[str, object], engine: str
) -> None:
    """Raise if a runtime's results on an example are not those of the graph that it was made from."""
    with torch.no_grad():
        try:
            expected = graph(**example)
        except (RuntimeError, IndexError, ValueError) as error:  # of the inputs, which are made up
            log.info("engine=%r is not compared with the graph, which fails on made-up inputs: %s", engine, error)
            return
        compare_results(expected, runtime(**example), lambda: _run_nudged(graph, dict(example)), engine)


def compare_results(expected: object, found: object, nudged: Callable[[], object], engine: str) -> None:
    """Raise if a runtime's result is further from the graph's than what a nudge of the inputs changes explains.

    `nudged` runs the graph on such inputs; it is not asked where the results are close.
    """
    agree = _worst_db(expected, found)
    if agree >= _ENOUGH_DB:
        return
    wanted = min(_ENOUGH_DB, _worst_db(expected, nudged()) - _SLACK_DB)
    if agree < wanted:
        raise FxQuantError(
            f"engine={engine!r} computes something else than the quantized graph: their results agree to "
            f"{agree:.1f} dB, where rounding leaves at least {wanted:.1f}. The runtime is wrong on this model. Use "
            "another engine."
        )


def _run_nudged(graph: nn.Module, example: dict[str, object]) -> object:
    """Return the result on inputs and weights that are both nudged: a grid may take in what changes in the inputs."""
    grids = {id(module) for module in graph.modules() if isinstance(module, Grid)}  # steps stay where they are
    tensors = {
        join_path(path, name): nudge(tensor)
        for path, module in graph.named_modules()
        if id(module) not in grids
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    return torch.func.functional_call(graph, tensors, (), nudge(example), tie_weights=False)


def nudge(values: T) -> T:
    """Tensors changed by less than a step, up or down, wherever they are floats."""
    made: T = pytree.tree_map_only(Tensor, _nudge, values)
    return made


def _nudge(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    ways = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(x.device)
    return torch.empty_like(x).copy_(torch.where(ways.bool(), x * _UP, x / _UP))  # lies in memory as x does


def _worst_db(expected: object, actual: object) -> float:
    """Return the lowest agreement of the tensors in two results, where the first is finite."""
    worst = float("inf")
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        if not isinstance(a, Tensor) or not (a.is_floating_point() or a.dtype in _QUANTIZED):
            continue
        known = a.isfinite()
        if a.shape != b.shape or not b[known].isfinite().all():
            return float("-inf")
        if a[known].any():
            worst = min(worst, sqnr_db(a[known], b[known]))
    return worst
