"""Fold batch norms into the conv, transposed conv or linear that feeds them.

    w' = w * g        b' = (b - mean) * g + beta        with g = gamma / sqrt(var + eps), per output channel

A batch norm is folded only where that is right: it is the only user of the op's output, both modules are called once,
nothing else reads what they hold, and the norm works with running statistics. The folded op keeps its path; an
`nn.Identity` stands where the batch norm was.
"""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import Tensor, fx, nn

from fxquant.graph.context import Context, Guard
from fxquant.graph.hooks import has_forward_hooks
from fxquant.graph.nodes import only_user, tensor_info
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region, preparation_of
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.numerics.weights.fold_norm import BatchNorm, fold_norm
from fxquant.numerics.weights.folded_norm import FoldedNorm, folded_norm
from fxquant.ops.table import Op
from fxquant.passes.choose import fusion_allowed


def fold_bn(region: Region, context: Context) -> None:
    """Fold the batch norms that can be folded into the ops before them. A None rule for either forbids it.

    Where sizes are not known, the context's guard makes sure of what is taken for granted; without one nothing is.
    """
    found: list[FoldedNorm] = []
    for producer, node in find_pairs(region, context):
        norm = region.get_submodule(str(node.target))
        assert isinstance(norm, BatchNorm)
        set_submodule(region, str(producer.target), folded(region.get_submodule(str(producer.target)), norm))
        set_submodule(region, str(node.target), emptied(norm))
        take_over(region, producer, node)
        found.append(folded_norm(str(producer.target), str(node.target), norm))
    preparation_of(region).fused = True
    preparation_of(region).folded += tuple(found)


def find_pairs(region: Region, context: Context) -> list[tuple[fx.Node, fx.Node]]:
    """(op, batch norm) nodes that may become one; other norms after such an op get the reason, `meta["unfused"]`."""
    allowed, ops, guard = fusion_allowed(region, context), context.ops, context.guard
    calls = Counter(node.target for node in region.graph.nodes if node.op == "call_module")
    users = count_users(region)
    pairs = []
    for node in region.graph.nodes:
        op = ops.of_node(node, region)
        producer = node.args[0] if node.args else None
        if op is None or not op.folds or node.op != "call_module" or not isinstance(producer, fx.Node):
            continue
        before = ops.of_node(producer, region)
        if before is None or not before.folds_norm or producer.op != "call_module":
            continue
        why = _why_not(region, producer, node, calls, users) or _wrong_axis(producer, before, guard)
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
    """Return an identity with the children of the norm: a user's norm may hold the activation that follows it."""
    identity = nn.Identity()
    identity.__dict__["_modules"] = norm._modules
    return identity.train(norm.training)


def _why_not(
    region: Region, producer: fx.Node, norm_node: fx.Node, calls: Counter[object], users: Counter[int]
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
    if module._forward_hooks or has_forward_hooks(norm):
        return "hooks are called between them"
    for path, each in ((producer.target, module), (norm_node.target, norm)):
        if not is_sole_user(each, users):
            return f"a parameter of {path} is read elsewhere, too"
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics"
    if isinstance(module, nn.Linear) and module.out_features != norm.num_features:
        return "it norms another axis than the features of the linear"
    return None


def _wrong_axis(producer: fx.Node, op: Op, guard: Guard | None) -> str | None:
    """BatchNorm1d normalizes axis 1, which is the feature axis of a linear for 2-D inputs only."""
    info = tensor_info(producer)
    if op.channels_at == 1 or (info is not None and len(info.shape) == 2):
        return None
    source = producer.args[0] if producer.args else None
    if info is not None or guard is None or not isinstance(source, fx.Node):
        return "the features of a linear are not its axis 1 here"
    with producer.graph.inserting_before(producer):
        guard(producer.graph, source, 2)
    return None


@torch.no_grad()
def folded(module: nn.Module, norm: BatchNorm) -> nn.Module:
    """Return a copy of `module` with `norm` folded into its weight and bias."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    new_weight, new_bias = fold_norm(module, weight, bias, norm)
    result = copy.copy(module)
    result.__dict__["_parameters"] = {
        **module._parameters,
        "weight": nn.Parameter(new_weight, requires_grad=weight.requires_grad),
        "bias": nn.Parameter(new_bias, requires_grad=weight.requires_grad),
    }
    return result
