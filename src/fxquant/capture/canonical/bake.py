"""Bake weight norm, spectral norm, pruning and other parametrizations into plain weights, on a clone of the model.

`weight = g * v / |v|` becomes a Parameter `weight` with that value. torch's own `remove_parametrizations` would change
the class that the clone shares with the user's module, so the clone gets its plain class and tables by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fxquant.capture.run_untraced import evaluating
from fxquant.graph.region import regions

Hook = WeightNorm | SpectralNorm | BasePruningMethod
_HOOKS = ("_forward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def bake_parametrizations(tree: nn.Module) -> nn.Module:
    """Make the parametrized modules of a tree (a clone: it is changed) plain."""
    with torch.no_grad(), evaluating(tree):  # in train mode spectral norm would take another power iteration
        for module in list(tree.modules()):
            if parametrize.is_parametrized(module):
                _bake_parametrized(module)
            for hook in list(module._forward_pre_hooks.values()):
                if isinstance(hook, Hook):
                    _bake_hook(module, hook)
    return tree


def bake_regions(model: nn.Module) -> nn.Module:
    """Make modules of graphs plain that were parametrized or pruned after these were captured."""
    for _, region in regions(model):
        bake_parametrizations(region)
    return model


def is_baked(model: nn.Module) -> bool:
    """Tell whether baking would change the model."""
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return any(map(parametrize.is_parametrized, model.modules())) or any(isinstance(hook, Hook) for hook in hooks)


def pruned(model: nn.Module) -> list[str]:
    """Return the tensors of a model that have a mask of torch.nn.utils.prune."""
    return [
        f"{path}.{hook._tensor_name}".removeprefix(".")
        for path, module in model.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod)
    ]


def parametrized(model: nn.Module) -> list[str]:
    """Return the tensors of a model that have a parametrization, or a norm of the older kind."""
    found = []
    for path, module in model.named_modules():
        names = list(module.parametrizations) if parametrize.is_parametrized(module) else []
        hooks = module._forward_pre_hooks.values()
        names += [hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)]
        found += [f"{path}.{name}".removeprefix(".") for name in names]
    return found


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
    _drop_hooks(module, _is_of_parametrization)


def _is_of_parametrization(hook: object) -> bool:
    """Tell whether a hook is for what a parametrization is made of; such hooks are local, and do not pickle."""
    return getattr(hook, "__module__", "") == parametrizations.__name__


def _bake_hook(module: nn.Module, hook: Hook) -> None:
    name, value, parts = _parts(module, hook)
    trains = any(p.requires_grad for part in parts if (p := module._parameters.get(f"{name}_{part}")) is not None)
    for part in parts:
        module._parameters.pop(f"{name}_{part}", None)
        module._buffers.pop(f"{name}_{part}", None)
    module.__dict__.pop(name, None)
    module._parameters[name] = nn.Parameter(value.detach(), requires_grad=trains)
    _drop_hooks(module, lambda other: other is hook or getattr(other, "fn", None) is hook)


def _drop_hooks(module: nn.Module, which: Callable[[object], bool]) -> None:
    for table in _HOOKS:
        hooks = getattr(module, table)
        for key, hook in list(hooks.items()):
            if which(getattr(hook, "hook", hook)):  # load hooks come wrapped
                del hooks[key]


def _parts(module: nn.Module, hook: Hook) -> tuple[str, Tensor, tuple[str, ...]]:
    """Return the name of the tensor that a hook makes before each call, its value, and what it is made of."""
    if isinstance(hook, WeightNorm):
        return hook.name, hook.compute_weight(module), ("g", "v")
    if isinstance(hook, SpectralNorm):
        return hook.name, hook.compute_weight(module, do_power_iteration=False), ("orig", "u", "v")
    return str(hook._tensor_name), hook.apply_mask(module), ("orig", "mask")
