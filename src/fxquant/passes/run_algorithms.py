"""The points of the pipelines at which algorithms do their work. The hooks: graph/algorithm.py."""

from __future__ import annotations

import torch

from fxquant.graph.context import Context
from fxquant.graph.region import Region, preparation_of
from fxquant.passes.watch import forget


def rewrite_float(region: Region, context: Context) -> None:
    """Let the algorithms rewrite the float graph, and remember which they are."""
    preparation_of(region).algorithms = context.algorithms
    for algorithm in context.algorithms:
        algorithm.rewrite(region, context)


def adapt_calibrated(region: Region, context: Context) -> None:
    """Let the algorithms rewrite the float graph by what calibration saw, unless they have."""
    if preparation_of(region).adapted:
        return
    with torch.random.fork_rng(devices=[]):  # what a graph draws while algorithms run it is not the user's
        for algorithm in preparation_of(region).algorithms:
            algorithm.adapt(region, context)
    preparation_of(region).adapted = True


def apply_algorithms(region: Region, context: Context) -> None:
    """Let the algorithms change weights, biases and quantizers before these are fixed, and forget what was seen."""
    with torch.random.fork_rng(devices=[]):
        for algorithm in preparation_of(region).algorithms:
            algorithm.apply(region, context)
    preparation_of(region).algorithms = ()
    forget(region)
