"""A few bytes of a tensor's memory, by which writes are seen that torch does not count.

Those are writes through numpy, DLPack and `tensor.data`. To compare all of a large tensor before each call takes longer
than many kernels. What is written to a whole tensor changes some of these bytes; what is written to a few elements of a
large one may not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from fxquant.graph import torch_compat

_PIECES, _WIDTH = 4, 4  # of bytes: the first, the last and some between; one more array is slower than longer ones
Bytes = NDArray[np.uint8]


def sampled(tensor: Tensor) -> Bytes | None:
    """Return a view of pieces of a tensor's memory, a row each; None if it has no plain memory, or hardly any."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return None
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = extent * tensor.element_size()
    if count < _WIDTH:
        return None
    with torch_compat.unseen(), torch.no_grad():
        memory = tensor.detach().as_strided((extent,), (1,)).view(torch.uint8).numpy()
    pieces = min(_PIECES, -(-count // _WIDTH))
    step = (count - _WIDTH) // (pieces - 1) if pieces > 1 else _WIDTH
    return as_strided(memory, (pieces, _WIDTH), (step, 1), writeable=False)


def read(samples: Sequence[Bytes]) -> bytes:
    """Return what is in samples now."""
    return np.concatenate(samples).tobytes() if samples else b""
