"""Modules whose tensors are copied elsewhere, into kernels and graphs: they count changes, so that old copies show."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class Counted(nn.Module):
    """Counts what happens to its tensors as a whole: loads, moves, casts, a tensor put in the place of another."""

    changes: ClassVar[int] = 0  # of all such modules

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._changed()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._changed()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__.get("_buffers", ()):
            self._changed()

    def _changed(self) -> None:
        Counted.changes += 1
