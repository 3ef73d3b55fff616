"""Tensors of a quantized module that can be called, as code for torch.ao's modules reads them.

conv.weight                   the tensor
conv.weight().dequantize()    its real values, in float
conv.weight().int_repr()      its integers
conv.bias()                   the real values

What is made of the integers is made again when they are written to, which torch counts, but not through numpy, DLPack
or `tensor.data`. So an array of such a tensor is for reading, DLPack gets a copy, and `data` is the tensor itself.
"""

from __future__ import annotations

from typing import Any, SupportsIndex, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor


class Readable(Tensor):
    """A view of a tensor, for code outside. Ops, copies and pickles take it as a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _owner: Any  # QuantizedWeight
    _name: str

    def is_of(self, owner: object) -> bool:
        """Tell whether this is a view of that module's tensor."""
        return self._owner is owner

    @property
    def data(self) -> Tensor:
        return self.as_subclass(Tensor).detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self._owner.held(self._name).data = value

    def detach(self) -> Tensor:
        return readable(self.as_subclass(Tensor).detach(), self._owner, self._name)

    def numpy(self, *, force: bool = False) -> NDArray[np.generic]:
        found: NDArray[np.generic] = self.as_subclass(Tensor).numpy(force=force)
        found.flags.writeable = False
        return found

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        return np.array(self.numpy(), dtype=dtype, copy=copy) if copy else np.asarray(self.numpy(), dtype=dtype)

    def __dlpack__(self, **how: Any) -> Any:
        if how.pop("copy", None) is False:
            raise BufferError("the weight of a converted model is given as a copy")
        return self.as_subclass(Tensor).clone().__dlpack__(**how)

    def __call__(self) -> Tensor:
        if self._name == "bias":
            return self.dequantize()
        return readable(self._owner.integers, self._owner, self._name)

    def dequantize(self) -> Tensor:
        return cast(Tensor, self._owner.dequantized(self._name))

    def int_repr(self) -> Tensor:
        return cast(Tensor, self._owner.integers if self._name == "weight" else self._owner.held(self._name))

    def qscheme(self) -> torch.qscheme | None:  # type: ignore[override]
        """As torch names it; per group there is no name."""
        if self._owner.spec.granularity == "per_tensor":
            return torch.per_tensor_affine
        return torch.per_channel_affine if self._owner.spec.granularity == "per_channel" else None

    def q_scale(self) -> float:
        return float(self._owner.weight_scale)

    def q_zero_point(self) -> int:
        zero = self._owner.weight_zero_point
        return 0 if zero is None else int(zero)

    def q_per_channel_scales(self) -> Tensor:
        return cast(Tensor, self._owner.weight_scale)

    def q_per_channel_zero_points(self) -> Tensor:
        zero = self._owner.weight_zero_point
        return torch.zeros_like(self._owner.weight_scale, dtype=torch.int64) if zero is None else zero.to(torch.int64)

    def q_per_channel_axis(self) -> int:
        return int(self._owner.spec.axis)

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        return self.as_subclass(Tensor).clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        made: str | tuple[object, ...] = self.as_subclass(Tensor).__reduce_ex__(protocol)
        return made


def readable(tensor: Tensor, owner: object, name: str) -> Readable:
    """Return the tensor `name` of a QuantizedWeight for code outside."""
    view = tensor.as_subclass(Readable)
    view._owner, view._name = owner, name
    return view
