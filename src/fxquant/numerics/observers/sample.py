"""Some of the inputs that calibration ran a graph with, whole calls, for algorithms that run the graph again.

Calls are kept at a stride: every one at first, and each time that there is no more room, every second of those that are
left. So what is kept comes from all of the data, is the same each time, and has a bound: `most` bytes, or one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.numerics.observers.watcher import Watcher

MOST = 1 << 27  # bytes for each region: about 200 pictures of 224 x 224


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Whole calls with `count` tensors, as a statistic to keep."""

    count: int
    most: int = MOST

    @property
    def label(self) -> str:
        return f"calls_{self.count}_{self.most}"

    def make(self) -> Sample:
        return Sample(self.count, self.most)


class Sample(Watcher):
    """Sees the tensors of a call together. Keeps copies, as buffers `call_<index>_<tensor>`."""

    total: Tensor
    stride: Tensor

    def __init__(self, count: int, most: int) -> None:
        super().__init__()
        self.count, self.most = count, most
        self.register_buffer("total", torch.tensor(0))
        self.register_buffer("stride", torch.tensor(1))

    @torch.no_grad()
    def forward(self, *values: Tensor) -> None:
        if not all(isinstance(value, Tensor) and not value.is_meta for value in values):
            return
        if not any(value.numel() for value in values):
            return  # a call without samples
        if int(self.total) % int(self.stride) == 0:
            self._keep([*self.calls(), tuple(value.detach().clone() for value in values)])
        self.total = self.total + 1

    def calls(self) -> list[tuple[Tensor, ...]]:
        """Return what was kept, in the order of the data."""
        kept = sum(name.endswith("_0") for name in self._buffers if name.startswith("call_"))
        return [tuple(self._tensor(f"call_{call}_{index}") for index in range(self.count)) for call in range(kept)]

    def _tensor(self, name: str) -> Tensor:
        found = self._buffers[name]
        assert found is not None
        return found

    def _keep(self, calls: list[tuple[Tensor, ...]]) -> None:
        while len(calls) > 1 and sum(_bytes(call) for call in calls) > self.most:
            calls = calls[::2]
            self.stride = self.stride * 2
        for name in [name for name in self._buffers if name.startswith("call_")]:
            del self._buffers[name]
        for call, values in enumerate(calls):
            for index, value in enumerate(values):
                self.register_buffer(f"call_{call}_{index}", value)

    def merge(self, other: Sample) -> None:
        self.total = self.total + other.total.to(self.total.device)
        self.stride = torch.maximum(self.stride, other.stride.to(self.stride.device))
        self._keep([*self.calls(), *other.calls()])

    def fresh(self) -> Sample:
        return Sample(self.count, self.most)

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *args: object) -> None:
        given = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        for name in [name for name in self._buffers if name.startswith("call_")]:
            del self._buffers[name]
        for name, value in given.items():
            if name.startswith("call_") and isinstance(value, Tensor):
                self.register_buffer(name, torch.empty_like(value))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _bytes(call: tuple[Tensor, ...]) -> int:
    return sum(value.numel() * value.element_size() for value in call)
