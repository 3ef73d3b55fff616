"""What every observer does: look at tensors one batch at a time, remember a fixed amount, answer with a range.

    update(x)                      low, high = range()                      merge(other)

Integer, boolean, empty and meta tensors are ignored. A NaN is an error, and so is a sparse layout. Infinities and
values of at least half the largest number of their dtype are sentinels of additive masks ("minus infinity"), not
signal: they are left out of the range and remembered in `saw_sentinel`. The check costs nothing extra for ordinary
data: only when the extremes are that large are the elements filtered.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.config.spec import Spec
from fxquant.errors import CalibrationError, ConfigError, StageError
from fxquant.graph.torch_compat import known_as_observer
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.buffers import KeepsDtypes, resize_to_loaded
from fxquant.numerics.distributed.agree import agree_on_range
from fxquant.numerics.ranges import storage_order, tensor_range


@known_as_observer
class Observer(KeepsDtypes):
    """Base of the observers. Subclasses give `_observe`, `_merge` and, if low and high are not it, `range`."""

    low: Tensor
    high: Tensor
    batches: Tensor
    sentinels: Tensor

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self._shared = False
        self.register_buffer("low", torch.tensor(math.inf))
        self.register_buffer("high", torch.tensor(-math.inf))
        self.register_buffer("batches", torch.tensor(0))
        self.register_buffer("sentinels", torch.tensor(False))

    @torch.no_grad()
    def update(self, x: Tensor, shared: bool = False) -> None:
        """Take one batch into account. Keeps no reference to x. `shared`: take in the extremes of all ranks."""
        if not x.is_floating_point() or x.numel() == 0 or x.is_meta:
            return
        if x.layout != torch.strided:
            raise CalibrationError(
                f"tensor {self.name!r} is in the layout {x.layout}, and an int8 model quantizes dense tensors. "
                "Give it as x.to_dense(), or set the qconfig of what takes it to None to leave that in float."
            )
        if self.low.device != x.device:
            self.to(x.device)
        self._shared = shared
        if self._observe(x.detach()):
            self.batches += 1

    def range(self) -> tuple[Tensor, Tensor]:
        """(low, high), float32, shaped like the scale; StageError when nothing was seen."""
        self._check_seen()
        return self.low.clone(), self.high.clone()

    def qparams(self) -> tuple[Tensor, Tensor]:
        """(scale, zero_point) of the range."""
        return choose_qparams(*self.range(), self.spec)

    @torch.no_grad()
    def merge(self, other: Self) -> None:
        """Become what one observer would be that saw the data of both."""
        if type(other) is not type(self) or other.spec != self.spec:
            raise ConfigError(
                f"observer of {self.name!r} ({self.spec}) cannot merge with the one of {other.name!r} ({other.spec}): "
                "both must have the same spec."
            )
        self.sentinels |= other.sentinels.to(self.sentinels.device)
        if not int(other.batches):
            return
        self._merge(other)
        self.batches += other.batches.to(self.batches.device)

    @property
    def seen(self) -> bool:
        """Whether there is a range to give."""
        return int(self.batches) > 0

    @property
    def saw_sentinel(self) -> bool:
        """Whether mask values (see the module docstring) were left out."""
        return bool(self.sentinels)

    def _observe(self, x: Tensor) -> bool:
        """Take x into account; False when every element was a sentinel."""
        raise NotImplementedError

    def _merge(self, other: Self) -> None:
        raise NotImplementedError

    def _check_seen(self) -> None:
        if not self.seen:
            hint = " (only mask values, which are left out)" if self.saw_sentinel else ""
            raise StageError(
                f"tensor {self.name!r} saw no data{hint}, so it has no range. Run calibration batches through the "
                "prepared model that reach it, or set its qconfig to None to leave it in float."
            )

    @property
    def _whole(self) -> Spec:
        """The spec that extremes are looked for by."""
        return self.spec

    def clean(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """(x, low, high) without sentinels, or None if there is nothing else. Per tensor, x comes back flat.

        Per channel or group, sentinels become 0, which never changes a range: ranges always include 0.
        """
        flat = self._whole.granularity == "per_tensor"
        if flat:
            x = storage_order(x)
        low, high = tensor_range(x, self._whole)
        smallest, largest = torch.stack((low.min(), high.max())).tolist()
        if math.isnan(smallest) or math.isnan(largest):
            if self.spec.learn is not None:
                raise CalibrationError(
                    f"tensor {self.name!r} holds NaN in batch {int(self.batches) + 1} of training. Check the batch, "
                    "and whether the loss was finite before: a step on one that is not leaves NaN in the weights."
                )
            raise CalibrationError(
                f"tensor {self.name!r} holds NaN in calibration batch {int(self.batches) + 1}. "
                "Check that the float model gives finite values on this batch, or drop the batch."
            )
        limit = sentinel_limit(x.dtype)
        if smallest <= -limit or largest >= limit:
            self.sentinels.fill_(True)
            ordinary = x.abs() < limit
            if not bool(ordinary.any()):
                return None
            x = x[ordinary] if flat else x.masked_fill(~ordinary, 0.0)
            low, high = tensor_range(x, self._whole)
        low, high = low.to(torch.float32), high.to(torch.float32)
        return x, *(agree_on_range(low, high) if self._shared else (low, high))

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *args: object) -> None:
        resize_to_loaded(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}, batches={int(self.batches)}"


def sentinel_limit(dtype: torch.dtype) -> float:
    """Return the magnitude from which a value is a mask sentinel: half of what the dtype, and float32, can hold."""
    return 0.5 * min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
