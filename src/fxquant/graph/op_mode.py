"""Look at the ops that run, inside of functions and modules, too: a dispatch mode of torch with one typed method."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Op: TypeAlias = "torch._ops.OpOverload[..., object]"


class OpMode(TorchDispatchMode):
    """While it lasts, `run_op` is called in the place of each op, which it runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @abc.abstractmethod
    def run_op(self, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run an op and return what it gives."""

    def __torch_dispatch__(
        self,
        func: Op,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return self.run_op(func, args, kwargs or {})
