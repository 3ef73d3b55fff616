"""Which quantizer a node of a prepared graph calls, and whether it has a grid."""

from __future__ import annotations

from torch import fx

from fxquant.graph.region import Region
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.grid import MASK, NO_DATA, OFF


def quantizer_of(region: Region, node: fx.Node) -> FakeQuant | None:
    """Return the FakeQuant that a node calls, if it calls one."""
    if node.op != "call_module":
        return None
    module = region.get_submodule(str(node.target))
    return module if isinstance(module, FakeQuant) else None


def why_dropped(quantizer: FakeQuant) -> str | None:
    """Tell why a quantizer cannot be converted, or None if it can."""
    observer = quantizer.observer
    if quantizer.spec.dynamic or observer is None:
        return None
    if observer.saw_sentinel:
        return OFF[MASK]
    return None if quantizer.has_range else OFF[NO_DATA]
