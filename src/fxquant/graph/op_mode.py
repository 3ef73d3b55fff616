"""Look at the ops that run, inside of functions and modules, too: a dispatch mode of torch with one typed method.

torch keeps TorchDynamo out of such modes, and imports it to do so, which takes longer than many a capture. Here it is
kept out where it is there already.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Callable, Sequence
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
        run = _run_uncompiled() if "torch._dynamo" in sys.modules else _run
        return run(self, func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch to leave `__torch_dispatch__` as it is written."""
        return False


def _run(mode: OpMode, op: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return mode.run_op(op, args, kwargs)


@functools.cache
def _run_uncompiled() -> Callable[[OpMode, Op, tuple[object, ...], dict[str, object]], object]:
    found: Callable[[OpMode, Op, tuple[object, ...], dict[str, object]], object] = torch.compiler.disable(_run)
    return found
