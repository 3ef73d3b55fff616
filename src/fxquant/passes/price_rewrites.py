"""Add to the Decisions of rewritten ops what the rewrite costs on the calibration data. Runs on frozen graphs.

noise  =  E[(f(x) - g(x))^2] / E[f(x)^2]       f as in the model, g as on the hardware, x as calibration saw it
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite, decision_of
from fxquant.graph.region import Region
from fxquant.numerics.observers.histogram import HistogramObserver
from fxquant.ops.table import activation_nodes
from fxquant.passes.find_quantizer import quantizer_of

_CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
}


def price_rewrites(region: Region, context: Context) -> None:
    """Say what curves that stand for others cost on the data."""
    for node in region.graph.nodes:
        op, decision = context.ops.of_node(node, region), decision_of(node)
        for rewrite in node.meta.pop("rewritten", ()):
            if op is None or decision is None or not rewrite.curves:
                continue
            operands = activation_nodes(node, op)
            price = _price(region, operands[0], rewrite) if operands else None
            if price is not None:
                text = str(rewrite)
                reason = decision.reason.replace(text, f"{text}, {price:+.1f} dB of noise")
                decision = dataclasses.replace(decision, reason=reason)
                node.meta["decision"] = decision


def _price(region: Region, operand: fx.Node, rewrite: Rewrite) -> float | None:
    """In dB; None where the data of the input was not kept."""
    quantizer = quantizer_of(region, operand)
    observer = None if quantizer is None else quantizer.observer
    if not isinstance(observer, HistogramObserver) or not observer.seen:
        return None
    found = observer.histogram()
    x = (found.edges[1:] + found.edges[:-1]) / 2
    wanted, got = (_curve(name)(x) for name in rewrite.curves)
    power, noise = (float((found.counts * y.square()).sum()) for y in (wanted, got - wanted))
    return 10 * math.log10(noise / power) if power > 0 and noise > 0 else None


def _curve(name: str) -> Callable[[Tensor], Tensor]:
    kind, _, slope = name.partition(" ")
    return _CURVES[kind] if not slope else lambda x: F.leaky_relu(x, float(slope))
