"""Kernels inside torch.jit.trace: one function in the text form of TorchScript's graphs per call.

torch's tracer has no form for arguments of oneDNN's ops, so it is handed a function that is written down by a tape. It
packs its weight itself: packed weights cannot be stored. A saved trace needs nothing but torch to be loaded.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable

from torch import Tensor

from fxquant.engines.onednn.tape import Tape
from fxquant.errors import ConfigError
from fxquant.graph import torch_compat


def call_traced(function: Callable[..., Tensor], tensors: list[Tensor], what: str) -> Tensor:
    """`function(*tensors)` as one call in the trace."""
    with torch_compat.untraced():
        tape = Tape(list(tensors))
        with tape:
            made = function(*tensors)
        script = _script(tape.text(made)) if not tape.refused else None
    if script is None:
        raise ConfigError(
            f"torch.jit.trace cannot take {what}: {tape.refused or 'this torch has no interpreter'}. "
            "Use fxquant.save, or torch.export."
        )
    result = script(*tensors, *tape.held)
    assert isinstance(result, Tensor)
    return result


@functools.cache  # a trace points to its functions and does not own them
def _script(text: str) -> Callable[..., object] | None:
    return torch_compat.interpreted(text, f"__torch__.fxquant.kernel_{zlib.crc32(text.encode())}")
