"""Keep the buffers of observers and quantizers right while their module is cast, moved and loaded.

Ranges and scales stay float32 when the model around them is cast (`model.half()`), and take the shape of what is
loaded (a per-channel range has no shape before the first batch).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def restore_dtypes(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Undo what a cast did to the module's own tensors; `before` holds them as they were. Moves are kept."""
    for name, old in before.items():
        new = module._buffers[name] if name in module._buffers else module._parameters[name]
        if new is None or new.dtype == old.dtype:
            continue
        if isinstance(new, nn.Parameter):
            new.data = old.to(new.device)
        else:
            module._buffers[name] = old.to(new.device)


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's own buffers by name, without those of its children."""
    return dict(module.named_buffers(recurse=False))


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the data of the module's own parameters and buffers by name."""
    return {**own_buffers(module), **{name: p.data for name, p in module.named_parameters(recurse=False)}}


def resize_to_loaded(module: nn.Module, state_dict: Mapping[str, object], prefix: str) -> None:
    """Give the module's own buffers the shapes found in a state dict, so that loading can fill them."""
    for name, buffer in own_buffers(module).items():
        loaded = state_dict.get(prefix + name)
        if isinstance(loaded, Tensor) and loaded.shape != buffer.shape:
            module._buffers[name] = buffer.new_empty(loaded.shape)
