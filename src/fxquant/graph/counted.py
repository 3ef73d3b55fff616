"""Tensors that count what is written to them, also where a model is made inside `torch.inference_mode()`.

Tensors made there have no version counter. Whether what was made of them (machine code, packed weights, a graph of a
runtime) is still right could not be known, and it would be made again in every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def counted(make: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `make` outside of inference mode, without gradients, wherever it is called."""

    @functools.wraps(make)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not torch.is_inference_mode_enabled():
            return make(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return make(*args, **kwargs)

    return run
