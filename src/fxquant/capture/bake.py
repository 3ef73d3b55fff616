"""Bake weight norm, spectral norm and other parametrizations into plain weights, on a clone of the model.

`weight = g * v / |v|` becomes a Parameter `weight` with that value. The user's module is not touched: each module
that is baked is deep-copied first, and everything but the baked tensors is shared again.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fxquant.core.graph import set_submodule


def bake_parametrizations(tree: nn.Module) -> nn.Module:
    """Replace parametrized modules in the tree (a clone) by plain ones; returns the tree, or its baked root."""
    for path, module in list(tree.named_modules(remove_duplicate=True)):
        if not (parametrize.is_parametrized(module) or _old_hooks(module)):
            continue
        plain = _bake(module)
        if not path:
            tree = plain
        else:
            for other, same in list(tree.named_modules(remove_duplicate=False)):
                if same is module:
                    set_submodule(tree, other, plain)
    return tree


def _old_hooks(module: nn.Module) -> list[WeightNorm | SpectralNorm]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))]


def _bake(module: nn.Module) -> nn.Module:
    plain = copy.deepcopy(module)
    training = plain.training
    plain.eval()  # in train mode spectral norm would take another power iteration
    if parametrize.is_parametrized(plain):
        for name in list(plain.parametrizations):  # type: ignore[arg-type]
            parametrize.remove_parametrizations(plain, name, leave_parametrized=True)
    for hook in _old_hooks(plain):
        remove = remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm
        remove(plain, hook.name)
    for mine, theirs in ((plain._parameters, module._parameters), (plain._buffers, module._buffers)):
        for name, tensor in theirs.items():
            if name in mine:
                mine[name] = tensor  # type: ignore[assignment]
    for name, child in module._modules.items():
        if name in plain._modules:
            plain._modules[name] = child
    plain.training = training
    return plain
