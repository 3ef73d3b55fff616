"""Keep the buffers of observers and quantizers right while their module is cast, moved and loaded.

Ranges and scales stay float32 when the model around them is cast (`model.half()`), and take the shape of what is
loaded (a per-channel range has no shape before the first batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from typing_extensions import Self


class KeepsDtypes(nn.Module):
    """A module whose own tensors keep their dtypes when it is cast. Moves to other devices go through."""

    def _apply(self, fn: Callable[..., object], recurse: bool = True) -> Self:
        before = own_tensors(self)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name] if name in self._buffers else self._parameters[name]
            if new is None or new.dtype == old.dtype:
                continue
            if isinstance(new, nn.Parameter):
                new.data = old.to(new.device)
            else:
                self._buffers[name] = old.to(new.device)
        return self


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the data of the module's own parameters and buffers by name."""
    parameters = {name: parameter.data for name, parameter in module.named_parameters(recurse=False)}
    return {**dict(module.named_buffers(recurse=False)), **parameters}


def resize_to_loaded(module: nn.Module, state_dict: Mapping[str, object], prefix: str) -> None:
    """Give the module's own buffers the shapes found in a state dict, so that loading can fill them."""
    for name, buffer in module.named_buffers(recurse=False):
        loaded = state_dict.get(prefix + name)
        if isinstance(loaded, Tensor) and loaded.shape != buffer.shape:
            module._buffers[name] = buffer.new_empty(loaded.shape)
