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

from fxquant.core.graph import Region, only_user, set_submodule, tensor_info
from fxquant.core.ops import OPS, OpTable

_FOLDABLE = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


def fold_bn(region: Region, allowed: Callable[[fx.Node], bool] = lambda node: True, ops: OpTable = OPS) -> Region:
    """Fold what can be folded. `allowed` is asked for the op and for the norm (a None rule forbids fusion)."""
    calls = Counter(node.target for node in region.graph.nodes if node.op == "call_module")
    owners = Counter(
        id(parameter)
        for _, module in region.named_modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is None or op.kind != "batch_norm" or node.op != "call_module":
            continue
        producer = node.args[0] if node.args else None
        if not isinstance(producer, fx.Node) or not _can_fold(region, producer, node, calls, owners, ops):
            continue
        if not (allowed(producer) and allowed(node)):
            continue
        norm = region.get_submodule(str(node.target))
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        set_submodule(region, str(producer.target), folded(region.get_submodule(str(producer.target)), norm))
        set_submodule(region, str(node.target), _emptied(norm))
        producer.meta["tensor"] = node.meta.get("tensor", producer.meta.get("tensor"))
        node.replace_all_uses_with(producer)
        region.graph.erase_node(node)
    region.recompile()
    return region


def _emptied(norm: nn.Module) -> nn.Module:
    """An identity with the children of the norm: a user's norm may hold the activation that follows it."""
    identity = nn.Identity()
    identity.__dict__["_modules"] = norm._modules
    return identity.train(norm.training)


def _can_fold(
    region: Region, producer: fx.Node, norm_node: fx.Node, calls: Counter[object], owners: Counter[int], ops: OpTable
) -> bool:
    op = ops.of_node(producer, region)
    if op is None or op.kind not in _FOLDABLE or producer.op != "call_module" or only_user(producer) is None:
        return False
    if calls[producer.target] != 1 or calls[norm_node.target] != 1:
        return False
    module, norm = region.get_submodule(str(producer.target)), region.get_submodule(str(norm_node.target))
    weight = module.weight
    if not isinstance(weight, Tensor) or not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return False
    if owners[id(weight)] != 1 or norm.running_mean is None or norm.running_var is None:
        return False
    if op.kind != "linear":
        return True
    # BatchNorm1d normalizes axis 1, which is the feature axis of a linear for 2-D inputs only
    info = tensor_info(producer)
    return info is not None and len(info.shape) == 2


@torch.no_grad()
def folded(module: nn.Module, norm: nn.modules.batchnorm._BatchNorm) -> nn.Module:
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
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        # weight is (in, out / groups, ...): the output channel is (group, second axis)
        groups = module.groups
        per_group = weight.double().reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        factor = gain.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))
        new_weight = (per_group * factor).reshape(weight.shape)
    else:
        new_weight = weight.double() * gain.reshape(-1, *(1,) * (weight.dim() - 1))
    result = copy.copy(module)
    result.__dict__["_parameters"] = {
        **module._parameters,
        "weight": nn.Parameter(new_weight.to(weight.dtype), requires_grad=weight.requires_grad),
        "bias": nn.Parameter(((bias - mean) * gain + shift).to(weight.dtype), requires_grad=weight.requires_grad),
    }
    return result
