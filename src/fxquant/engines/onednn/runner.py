"""Runs a region that was lowered to torch's oneDNN kernels."""

from __future__ import annotations

from fxquant.engines.graph_runner import GraphRunner


class OneDnn(GraphRunner):
    """The plain way to run kernels, one after the other. `failed`: why no runtime has the region, if one was asked."""

    engine = "onednn"
