"""Watch the inputs of all products, so that each of them can be quantized whatever is decided about the ops around it.

Where a convolution is int8, the range of what a view makes of its output is the range of that output, and nothing else
is watched. Once the convolution is lifted, the op behind the view needs the range of its own input.
"""

from __future__ import annotations

from torch import nn

from fxquant.flows.decide import is_open
from fxquant.graph.context import Context
from fxquant.graph.nodes import last_input
from fxquant.graph.region import Region, preparation_of
from fxquant.graph.run_passes import run_passes
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.statistics import HISTOGRAM, Statistics, label
from fxquant.ops.op import activation_nodes
from fxquant.ops.table import OPS, Role
from fxquant.passes.attention_products import KEYS, PROBABILITIES, part
from fxquant.passes.candidates import is_float_tensor
from fxquant.passes.read_op import setting
from fxquant.passes.watch import watched_tensor


def watch_products(prepared: nn.Module) -> None:
    """Add what is missing to a prepared model, in place, before it is calibrated."""
    run_passes(prepared, (_watch_products,), Context(), only=lambda region: is_open(region) and _watches(region))


def _watches(region: Region) -> bool:
    """Tell whether there are ranges to watch: dynamic and weight-only models need none."""
    path = preparation_of(region).statistics_path
    return bool(path) and any(isinstance(module, FakeQuant) for module in region.get_submodule(path).children())


def _watch_products(region: Region, context: Context) -> None:
    path = preparation_of(region).statistics_path
    kept = region.get_submodule(path)
    assert isinstance(kept, Statistics)
    for tensor in _inputs(region, kept):
        name = f"{tensor}_{label(HISTOGRAM)}"
        if name not in kept:
            kept[name] = FakeQuant(HISTOGRAM, tensor)
            source = watched_tensor(region, path, tensor)
            with region.graph.inserting_after(last_input(source)):
                region.graph.call_module(f"{path}.{name}", (source,))
    kept.train(region.training)


def _inputs(region: Region, kept: Statistics) -> list[str]:
    found: dict[str, None] = {}
    for node in region.graph.nodes:
        op = OPS.of_node(node, region) if node.op.startswith("call_") else None
        if op is not None and op.role is Role.COMPUTE:
            found.update(dict.fromkeys(each.name for each in activation_nodes(node, op) if is_float_tensor(each)))
            if part(node, PROBABILITIES) in kept:  # a target has two products there
                value = setting(node, None, 2, "value")
                found.update(dict.fromkeys((part(node, KEYS), value.name)))
    return list(found)
