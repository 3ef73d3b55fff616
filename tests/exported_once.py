"""torch.export of the same model with the same inputs, once for all tests of a worker that ask for `exported_once`.

An export of a small model takes as long as all else that is done to it. A program is kept by all that goes into it:
the modules with their attributes, modes and tensors, the inputs, the sizes that are free, and whether gradients are on.
Capture only reads programs; one with constants of its own, which would become a model's buffers, is not kept.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

_programs: dict[bytes, ExportedProgram] = {}


class _ByValue(pickle.Pickler):
    """Pickles tensors by their values: torch writes where they lie as well."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        form = type(value).__name__, str(value.dtype), value.shape, value.stride(), value.requires_grad
        return tuple, ((*form, value.detach().contiguous().numpy().tobytes()),)


def export_once(
    export: Callable[..., ExportedProgram], model: nn.Module, *inputs: Any, **options: Any
) -> ExportedProgram:
    """`export(model, *inputs, **options)`, or the program that it gave for the same before."""
    written = io.BytesIO()
    try:
        _ByValue(written).dump((model, inputs, repr(options), torch.is_grad_enabled()))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):  # a class inside of a test
        return export(model, *inputs, **options)
    key = written.getvalue()
    if key not in _programs:
        program = export(model, *inputs, **options)
        if program.constants:
            return program
        _programs[key] = program
    return _programs[key]
