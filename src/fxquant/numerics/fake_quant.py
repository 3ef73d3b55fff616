"""The quantizer that sits in a prepared graph.

    observe    x' = x, and the observer sees x
    frozen     x' = fake_quantize(x, scale, zero_point), with the range of x itself for dynamic specs

`state` is a plain attribute, so that a compiled graph branches on it without reading a tensor; it travels in the state
dict as an extra state that is a small tensor, which `torch.load(weights_only=True)` and safetensors both accept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fxquant.core.spec import Spec
from fxquant.errors import StageError
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.buffers import own_buffers, resize_to_loaded, restore_dtypes
from fxquant.numerics.observers import Observer, make_observer
from fxquant.numerics.ranges import tensor_range

State = Literal["observe", "frozen"]
STATES: tuple[State, ...] = get_args(State)  # saved by position: add new states at the end


class FakeQuant(nn.Module):
    """Observes a tensor, then rounds it to the grid of its spec. Anything but a float tensor passes untouched."""

    scale: Tensor
    zero_point: Tensor
    observer: Observer | None

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self.state: State = "observe"
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("zero_point", torch.tensor(0, dtype=torch.int32))
        self.observer = None if spec.dynamic else make_observer(spec, name)

    def forward(self, x: Tensor, observe: bool = True) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        if self.state == "frozen":
            return self._fake_quantize(x)
        if self.observer is not None and observe:
            if self.training:
                raise StageError(
                    f"calibration ran in train mode at tensor {self.name!r}: batch norm and dropout would "
                    "bend its range. Call model.eval() first."
                )
            self.observer.update(x)
        return x

    def compute_qparams(self) -> tuple[Tensor, Tensor]:
        """(scale, zero_point) from what was observed; StageError when nothing was, or the spec is dynamic."""
        if self.observer is None:
            raise StageError(f"tensor {self.name!r} ({self.spec}) is dynamic: its scale is found for each input.")
        low, high = self.observer.range()
        return choose_qparams(low, high, self.spec)

    def freeze(self) -> None:
        """Fix scale and zero point, and quantize from now on."""
        if self.observer is not None:
            self.scale, self.zero_point = self.compute_qparams()
        self.state = "frozen"

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if self.observer is not None:
            return fake_quantize(x, self.scale, self.zero_point, self.spec)
        if x.numel() == 0:
            return x
        low, high = tensor_range(x.detach(), self.spec)
        return fake_quantize(x, *choose_qparams(low, high, self.spec), self.spec)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(STATES.index(self.state), dtype=torch.int8)

    def set_extra_state(self, state: Tensor) -> None:
        self.state = STATES[int(state)]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = own_buffers(self)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        restore_dtypes(self, before)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        resize_to_loaded(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}, {self.state}"
