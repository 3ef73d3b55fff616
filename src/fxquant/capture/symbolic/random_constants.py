"""Random numbers that forward draws by itself, while it is traced: `x + torch.rand(4)`.

What is traced is drawn in every call. A tensor that meets no traced value until it is drawn would be a constant of the
graph, with the numbers of the trace in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fxquant.graph.op_mode import Op, OpMode


class DrawnWatch(OpMode):
    """Which of the tensors that are not traced were drawn, or computed from such. `paused` tells when not to look."""

    def __init__(self, paused: Callable[[], bool]) -> None:
        super().__init__()
        self.paused = paused
        self._drawn: dict[int, Tensor] = {}  # by their memory; held, so that it is not given out again

    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        result = op(*args, **kwargs)
        if not self.paused():
            given = pytree.tree_leaves((args, kwargs))
            if torch.Tag.nondeterministic_seeded in op.tags or any(map(self.holds, given)):
                for leaf in pytree.tree_leaves(result):
                    if isinstance(leaf, Tensor) and (place := _place(leaf)):
                        self._drawn[place] = leaf
        return result

    def holds(self, value: object) -> bool:
        """Tell whether this is a tensor of random numbers."""
        return isinstance(value, Tensor) and bool(self._drawn) and _place(value) in self._drawn


def _place(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # it has no memory
        return 0
