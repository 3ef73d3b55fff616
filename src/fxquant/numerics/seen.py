"""Whether small tensors still are what they were, for those who keep numbers that they read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fxquant.graph.standing import Standing, stand_there

_bytes = methodcaller("tobytes")
_MOST_SHARED = 2**14  # bytes


class Seen:
    """What was read: which tensors stood there, where their memory is, and the bytes in it.

    Bytes, and not counts of writes: those miss what is written through `tensor.data`, and inference tensors have none.
    """

    def __init__(self, tables: Sequence[Mapping[str, Tensor | None]], keys: list[str]) -> None:
        self.tables, self.keys = tables, keys
        self.tensors = [cast(Tensor, table[key]) for table, key in zip(tables, keys, strict=True)]
        self.pointers = list(map(Tensor.data_ptr, self.tensors))
        memory = {tensor.untyped_storage().data_ptr(): _memory(tensor) for tensor in self.tensors if tensor.is_cpu}
        self.arrays = list(memory.values())
        self.bytes = list(map(_bytes, self.arrays))

    def holds(self) -> bool:
        """Tell whether all is as it was. A few passes in C: this is before each call."""
        return (
            stand_there(self.tables, self.keys, self.tensors)
            and list(map(Tensor.data_ptr, self.tensors)) == self.pointers
            and list(map(_bytes, self.arrays)) == self.bytes
        )

    def standing(self) -> Standing:
        return Standing(
            places=tuple(zip(self.tables, self.keys, self.tensors, strict=True)),
            pointers=tuple(zip(self.tensors, self.pointers, strict=True)),
            memory=tuple(zip(self.arrays, self.bytes, strict=True)),
        )


def _memory(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a view of all that lies in a tensor's memory, which many grids share.

    If that is much, it is one of the tensor alone.
    """
    storage = tensor.untyped_storage()
    if storage.nbytes() > _MOST_SHARED:
        return tensor.detach().numpy()
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
