"""Bake weight norm, spectral norm and other parametrizations into plain weights, on a clone of the model.

`weight = g * v / |v|` becomes a Parameter `weight` with that value. torch's own `remove_parametrizations` would change
the class that the clone shares with the user's module, so the clone gets its plain class and tables by hand.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fxquant.capture.compare import evaluating

_HOOKS = ("_forward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def bake_parametrizations(tree: nn.Module) -> nn.Module:
    """Make the parametrized modules of a tree (a clone: it is changed) plain."""
    with torch.no_grad(), evaluating(tree):  # in train mode spectral norm would take another power iteration
        for module in list(tree.modules()):
            if parametrize.is_parametrized(module):
                _bake_parametrized(module)
            for hook in list(module._forward_pre_hooks.values()):
                if isinstance(hook, (WeightNorm, SpectralNorm)):
                    _bake_hook(module, hook)
    return tree


def is_baked(model: nn.Module) -> bool:
    """Whether baking would change the model."""
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return any(parametrize.is_parametrized(module) for module in model.modules()) or any(
        isinstance(hook, (WeightNorm, SpectralNorm)) for hook in hooks
    )


def _bake_parametrized(module: nn.Module) -> None:
    lists = module._modules.pop("parametrizations")
    assert isinstance(lists, nn.ModuleDict)
    values = {name: parametrization() for name, parametrization in lists.items()}
    # parametrize gives each module a class of its own, derived from the plain one
    module.__class__ = type(module).__bases__[0]
    for name, parametrization in lists.items():
        parameters = list(parametrization.parameters())
        if parameters:
            trains = any(parameter.requires_grad for parameter in parameters)
            module._parameters[name] = nn.Parameter(values[name].detach(), requires_grad=trains)
        else:
            module._buffers[name] = values[name].detach()


def _bake_hook(module: nn.Module, hook: WeightNorm | SpectralNorm) -> None:
    name = hook.name
    parts: tuple[str, ...]
    if isinstance(hook, WeightNorm):
        value, parts = hook.compute_weight(module), ("g", "v")
    else:
        value, parts = hook.compute_weight(module, do_power_iteration=False), ("orig", "u", "v")
    trains = any(p.requires_grad for part in parts if (p := module._parameters.get(f"{name}_{part}")) is not None)
    for part in parts:
        module._parameters.pop(f"{name}_{part}", None)
        module._buffers.pop(f"{name}_{part}", None)
    module.__dict__.pop(name, None)
    module._parameters[name] = nn.Parameter(value.detach(), requires_grad=trains)
    for table in _HOOKS:
        hooks = getattr(module, table)
        for key, other in list(hooks.items()):
            other = getattr(other, "hook", other)  # load hooks come wrapped
            if other is hook or getattr(other, "fn", None) is hook:
                del hooks[key]
