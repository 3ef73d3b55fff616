"""Tensors that count what is written to them, also where a model is made inside `torch.inference_mode()`.

Tensors made there have no version counter. Whether what was made of them (machine code, packed weights, a graph of a
runtime) is still right could not be known, and it would be made again in every call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def counting(model: nn.Module) -> Iterator[None]:
    """Leave inference mode, without gradients, and give a model counting tensors in the place of others."""
    with contextlib.ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())
        _renew(model)
        yield


def _renew(model: nn.Module) -> None:
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_inference():
                    continue
                if id(tensor) not in made:
                    copied = tensor.detach().clone()
                    made[id(tensor)] = nn.Parameter(copied, False) if isinstance(tensor, nn.Parameter) else copied
                table[name] = made[id(tensor)]  # type: ignore[assignment]
