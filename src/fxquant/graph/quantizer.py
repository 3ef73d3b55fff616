"""What makes a module a quantizer, for those who may not know how it works (numerics/fake_quant.py)."""

from __future__ import annotations

from torch import fx, nn

from fxquant.graph.paths import find_module
from fxquant.graph.region import Region


class Quantizer(nn.Module):
    """A module that a prepared graph calls on a tensor, to watch or to round it. Conversion takes all of them out."""


def calls_quantizer(region: Region, node: fx.Node) -> bool:
    """Tell whether a node calls a quantizer."""
    return node.op == "call_module" and isinstance(find_module(region, str(node.target)), Quantizer)
