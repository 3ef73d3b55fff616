"""Everything that a model is: tensors, plain attributes (deep), modes and hooks, as values that can be compared."""

from __future__ import annotations

import hashlib
import types
from typing import Any

import torch
from torch import Tensor, fx, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "modules": [(path, id(module), type(module), module.training) for path, module in model.named_modules()],
        "tensors": {
            name: (id(tensor), tensor.requires_grad, tensor.grad is None, _value(tensor, set()))
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        },
        "hooks": {path: [dict(getattr(m, h)) for h in _HOOKS] for path, m in model.named_modules()},
        "attributes": {path: _value(_plain(module), set()) for path, module in model.named_modules()},
    }


def _plain(module: nn.Module) -> dict[str, Any]:
    own = nn.Module().__dict__
    return {name: value for name, value in module.__dict__.items() if name not in own}


def _value(value: Any, inside: set[int]) -> Any:
    """A value to compare; identities where there is nothing else to go by."""
    assert not isinstance(value, fx.Proxy)
    if isinstance(value, Tensor):
        plain = value.detach().contiguous().flatten()
        digest = hashlib.sha256(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        return str(value.dtype), tuple(value.shape), digest.hexdigest()
    if isinstance(value, (int, float, str, bytes, type(None), torch.dtype)):
        return value
    if id(value) in inside or isinstance(value, (type, types.FunctionType, types.MethodType)):
        return id(value)
    inside = {*inside, id(value)}
    if isinstance(value, nn.Module):
        return id(value), _value({**value.__dict__}, inside)
    if isinstance(value, dict):
        return type(value), [(_value(k, inside), _value(v, inside)) for k, v in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return type(value), [_value(item, inside) for item in value]
    table = getattr(value, "__dict__", None)
    slots = {name: getattr(value, name, "unset") for name in getattr(type(value), "__slots__", ())}
    if table is not None or slots:
        return id(value), _value({**(table or {}), **slots}, inside)
    return id(value)
