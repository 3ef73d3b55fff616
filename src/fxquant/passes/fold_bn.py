"""Fold batch norms into the conv, transposed conv or linear that feeds them.

    w' = w * g        b' = (b - mean) * g + beta        with g = gamma / sqrt(var + eps), per output channel

A batch norm is folded only where that is right: it is the only user of the op's output, both modules are called once,
the weight belongs to no other module, and the norm works with running statistics. The folded op keeps its path; an
`nn.Identity` stands where the batch norm was.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from fxquant.core.graph import Region
from fxquant.core.nodes import only_user, tensor_info
from fxquant.core.ops import OPS, Op, OpTable
from fxquant.core.paths import set_submodule
from fxquant.numerics.fold import BatchNorm, per_channel

_FOLDABLE = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


Allowed = Callable[[fx.Node], bool]
# writes a check that a tensor has this rank into a graph
Guard = Callable[[fx.Graph, fx.Node, int], None]


def fold_bn(
    region: Region, allowed: Allowed = lambda node: True, ops: OpTable = OPS, guard: Guard | None = None
) -> Region:
    """Fold what can be folded. `allowed` is asked for the op and for the norm (a None rule forbids fusion).

    Where sizes are not known, a `guard` makes sure of what is taken for granted; without one nothing is.
    """
    for producer, node in find_pairs(region, allowed, ops, guard):
        norm = region.get_submodule(str(node.target))
        assert isinstance(norm, BatchNorm)
        set_submodule(region, str(producer.target), folded(region.get_submodule(str(producer.target)), norm))
        set_submodule(region, str(node.target), emptied(norm))
        take_over(region, producer, node)
    region.recompile()
    return region


def find_pairs(
    region: Region, allowed: Allowed, ops: OpTable = OPS, guard: Guard | None = None
) -> list[tuple[fx.Node, fx.Node]]:
    """(op, batch norm) nodes that may become one; other norms after such an op get the reason, `meta["unfused"]`."""
    calls = Counter(node.target for node in region.graph.nodes if node.op == "call_module")
    owners = Counter(
        id(parameter)
        for _, module in region.named_modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    pairs = []
    for node in region.graph.nodes:
        op = ops.of_node(node, region)
        producer = node.args[0] if node.args else None
        if op is None or op.kind != "batch_norm" or node.op != "call_module" or not isinstance(producer, fx.Node):
            continue
        before = ops.of_node(producer, region)
        if before is None or before.kind not in _FOLDABLE or producer.op != "call_module":
            continue
        why = _why_not(region, producer, node, calls, owners) or _wrong_axis(producer, before, guard)
        if why is None and not (allowed(producer) and allowed(node)):
            why = "a rule leaves one of them in float"
        if why is None:
            pairs.append((producer, node))
        else:
            node.meta["unfused"] = f"not merged into {producer.target}: {why}"
    return pairs


def take_over(region: Region, producer: fx.Node, norm: fx.Node) -> None:
    """Let the op's node stand for the norm's, which goes."""
    producer.meta["tensor"] = norm.meta.get("tensor", producer.meta.get("tensor"))
    norm.replace_all_uses_with(producer)
    region.graph.erase_node(norm)


def emptied(norm: nn.Module) -> nn.Module:
    """An identity with the children of the norm: a user's norm may hold the activation that follows it."""
    identity = nn.Identity()
    identity.__dict__["_modules"] = norm._modules
    return identity.train(norm.training)


def _why_not(
    region: Region, producer: fx.Node, norm_node: fx.Node, calls: Counter[object], owners: Counter[int]
) -> str | None:
    if only_user(producer) is None:
        return "its output has another user"
    if calls[producer.target] != 1:
        return f"{producer.target} is called {calls[producer.target]} times"
    if calls[norm_node.target] != 1:
        return f"{norm_node.target} is called {calls[norm_node.target]} times"
    module, norm = region.get_submodule(str(producer.target)), region.get_submodule(str(norm_node.target))
    weight = module.weight
    if not isinstance(weight, Tensor) or not isinstance(norm, BatchNorm):
        return "it is no plain batch norm"
    if owners[id(weight)] != 1:
        return f"the weight of {producer.target} is used by another module"
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics"
    return None


def _wrong_axis(producer: fx.Node, op: Op, guard: Guard | None) -> str | None:
    """BatchNorm1d normalizes axis 1, which is the feature axis of a linear for 2-D inputs only."""
    info = tensor_info(producer)
    if op.kind != "linear" or (info is not None and len(info.shape) == 2):
        return None
    source = producer.args[0] if producer.args else None
    if info is not None or guard is None or not isinstance(source, fx.Node):
        return "the features of a linear are not its axis 1 here"
    with producer.graph.inserting_before(producer):
        guard(producer.graph, source, 2)
    return None


@torch.no_grad()
def folded(module: nn.Module, norm: BatchNorm) -> nn.Module:
    """A copy of `module` with `norm` folded into its weight and bias."""
    assert norm.running_mean is not None and norm.running_var is not None
    weight = module.weight
    assert isinstance(weight, Tensor)
    mean, var = norm.running_mean.double(), norm.running_var.double()
    gain = torch.rsqrt(var + norm.eps)
    if norm.weight is not None:
        gain = gain * norm.weight.double()
    shift = norm.bias.double() if norm.bias is not None else torch.zeros_like(mean)
    bias = module.bias.double() if isinstance(module.bias, Tensor) else torch.zeros_like(mean)
    new_weight = weight.double() * per_channel(gain, module)
    result = copy.copy(module)
    result.__dict__["_parameters"] = {
        **module._parameters,
        "weight": nn.Parameter(new_weight.to(weight.dtype), requires_grad=weight.requires_grad),
        "bias": nn.Parameter(((bias - mean) * gain + shift).to(weight.dtype), requires_grad=weight.requires_grad),
    }
    return result
