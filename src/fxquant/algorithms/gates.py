"""Gates of their own tensor, opened so that the channels of that tensor can be scaled.

    silu(x)  ->  x * sigmoid(g x)          g: a convolution of single channels, all 1 at first

For x' = s x and g = 1 / s the product is s silu(x): the factor passes, and what comes after takes it back. The factors
of channels are powers of two with at most 64 between them, so that 8 bits hold g exactly. The device computes the
product either way; what it does more is g. That is worth it beside depthwise convolutions only, whose channels do not
mix.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from fxquant.algorithms.channel_groups import ChannelGroup, channel_groups
from fxquant.config.qconfig import QConfig
from fxquant.config.spec import Spec
from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.paths import free_path, set_submodule
from fxquant.graph.region import Region
from fxquant.passes.candidates import choice_of
from fxquant.passes.hardware_form import call, is_static, note_rewrite
from fxquant.passes.read_op import operand_of

# factors that all channels may have in common, and how far theirs may be apart then: 7 steps are 56 and 3.5 at 16
GATE_FACTORS = {1.0: 64.0, 4 / 3: 32.0, 8 / 5: 16.0, 8 / 7: 16.0}
FLAT = 127 / 16  # beyond it, a sigmoid is 0 or 1 to 8 bits
_KEY = "gate"


def open_gates(region: Region, context: Context) -> None:
    """Open the gates that stand between a depthwise convolution and the next weight, on targets that split them."""
    kinds = frozenset() if context.target is None else context.target.split
    made: dict[fx.Node, fx.Node] = {}
    for node in list(region.graph.nodes):
        op = context.ops.of_node(node, region)
        if op is None or op.gate is None or op.kind not in kinds:
            continue
        if is_static(node) and _has_maker(region, context, node):
            made[_opened(region, node, op.kind, op.gate)] = node
    wanted = {
        tensor for group in channel_groups(region, context) if _is_worth(region, group) for tensor in group.tensors
    }
    for product, node in made.items():
        if product in wanted:
            region.graph.erase_node(node)
        else:
            _close(region, product, node)


def is_gate(node: fx.Node) -> bool:
    """Tell whether a node is the convolution in front of an opened gate."""
    return bool(node.meta.get(_KEY))


def whole_factors(factors: Tensor) -> Tensor:
    """Return the nearest factors that a gate takes back exactly."""
    return torch.maximum(factors, factors.max() / GATE_FACTORS[1.0]).log2().round().exp2()


def _has_maker(region: Region, context: Context, node: fx.Node) -> bool:
    """Tell whether a convolution with one scale makes what a gate is of, for the gate alone."""
    x = operand_of(node)
    op = context.ops.of_node(x, region)
    choice = choice_of(x)
    weight = choice.qconfig.weight if choice is not None and choice.qconfig is not None else None
    if op is None or x.op != "call_module" or len(x.users) != 1 or not is_static(x):
        return False
    if not isinstance(region.get_submodule(str(x.target)), nn.Conv2d):
        return False
    return isinstance(weight, Spec) and weight.granularity == "per_tensor"


def _opened(region: Region, node: fx.Node, kind: str, curve: Callable[[Tensor], Tensor]) -> fx.Node:
    """Return the product in the place of a node, which is left without users."""
    x, choice = operand_of(node), choice_of(operand_of(node))
    made = region.get_submodule(str(x.target))
    assert isinstance(made, nn.Conv2d) and choice is not None and choice.qconfig is not None
    path = free_path(region, f"{x.target}_gate")
    set_submodule(region, path, _ones(made))
    with region.graph.inserting_before(node):
        gate = region.graph.call_module(path, (x,))
    gate.meta.update({key: x.meta[key] for key in ("where", "tensor") if key in x.meta})
    gate.meta |= {_KEY: True, "choice": dataclasses.replace(choice, qconfig=_flat(choice.qconfig))}
    product = call(node, operator.mul, x, call(node, curve, gate))
    note_rewrite(
        product, Rewrite(name="open_gates", text=f"{kind} by a gate that takes factors of channels back, exact")
    )
    node.replace_all_uses_with(product)
    return product


def _ones(made: nn.Conv2d) -> nn.Conv2d:
    channels = made.out_channels
    with torch.device("meta"):
        gate = nn.Conv2d(channels, channels, 1, groups=channels, bias=False)
    gate.weight = nn.Parameter(torch.ones_like(made.weight[:, :1, :1, :1]).detach(), requires_grad=False)
    return gate.train(made.training)


def _flat(qconfig: QConfig) -> QConfig:
    """Return the rule of a convolution in front of a sigmoid: its output ends where that does not change any more."""
    spec = qconfig.output_spec
    if spec is None or spec.bits != 8 or not spec.symmetric or spec.observer in ("fixed", "custom"):
        return qconfig
    return dataclasses.replace(qconfig, output=spec.with_(observer="fixed", range=(-FLAT, FLAT)))


def _is_worth(region: Region, group: ChannelGroup) -> bool:
    ops = [region.get_submodule(str(node.target)) for node in (*group.makers, *group.takers) if not is_gate(node)]
    return not group.refused and any(getattr(op, "groups", 1) > 1 for op in ops)


def _close(region: Region, product: fx.Node, node: fx.Node) -> None:
    product.replace_all_uses_with(node)
    curve = product.args[1]
    assert isinstance(curve, fx.Node)
    gate = curve.args[0]
    assert isinstance(gate, fx.Node)
    for each in (product, curve, gate):
        region.graph.erase_node(each)
    region.delete_submodule(str(gate.target))
