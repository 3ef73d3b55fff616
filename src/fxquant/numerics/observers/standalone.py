"""An observer that stands by itself, with the face that torch.ao gives to observers.

    observer(x)                         scale, zero_point = observer.calculate_qparams()

It is one of our observers (observers/table.py) behind the attributes that code for torch.ao reads: dtype, qscheme,
quant_min, quant_max, ch_axis, min_val, max_val.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.config.qconfig import QConfig
from fxquant.config.spec import Spec
from fxquant.errors import StageError
from fxquant.graph.torch_compat import known_as_observer
from fxquant.numerics.affine import choose_qparams
from fxquant.numerics.observers.table import Observer, make_observer


class Partial:
    """A class with some of its arguments: `with_args` fixes values, `with_callable_args` what is called each time."""

    def __init__(self, make: Callable[..., object], callable_args: Mapping[str, Callable[[], object]]) -> None:
        self.make = make
        self.callable_args = dict(callable_args)

    def __call__(self, *args: object, **kwargs: object) -> object:
        made = {name: call() for name, call in self.callable_args.items() if name not in kwargs}
        return self.make(*args, **made, **kwargs)

    def with_args(self, **kwargs: object) -> Partial:
        return Partial(functools.partial(self.make, **kwargs), self.callable_args)

    def with_callable_args(self, **kwargs: Callable[[], object]) -> Partial:
        return Partial(self.make, {**self.callable_args, **kwargs})

    def __repr__(self) -> str:
        given = getattr(self.make, "keywords", {}) | self.callable_args
        name = getattr(getattr(self.make, "func", self.make), "__name__", repr(self.make))
        return f"{name}.with_args({', '.join(f'{key}={value!r}' for key, value in given.items())})"


class WithArgs:
    """Makes factories of a class: `MinMaxObserver.with_args(reduce_range=True)`."""

    @classmethod
    def with_args(cls, **kwargs: object) -> Partial:
        return Partial(functools.partial(cls, **kwargs), {})

    @classmethod
    def with_callable_args(cls, **kwargs: Callable[[], object]) -> Partial:
        return Partial(cls, kwargs)


@known_as_observer
class ObserverBase(WithArgs, nn.Module):
    """Base of observers: `forward(x)` looks at x, `calculate_qparams()` gives scale and zero point."""

    def __init__(self, dtype: torch.dtype, is_dynamic: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.is_dynamic = is_dynamic

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no forward.")

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} has no calculate_qparams.")


def torch_names(spec: Spec) -> dict[str, Any]:
    """Return what a spec says, as attributes of torch.ao's observers and fake-quantize modules."""
    short = torch.qint8 if spec.signed else torch.quint8
    kind = "per_tensor" if spec.granularity == "per_tensor" else "per_channel"
    return {
        "dtype": short if spec.bits <= 8 else spec.dtype,
        "qscheme": getattr(torch, f"{kind}_{'symmetric' if spec.symmetric else 'affine'}"),
        "quant_min": spec.quant_min,
        "quant_max": spec.quant_max,
        "ch_axis": spec.axis if kind == "per_channel" else -1,
        "is_dynamic": spec.dynamic,
    }


class StandaloneObserver(ObserverBase):
    """The observer of a spec."""

    observer: Observer | None
    qscheme: torch.qscheme
    quant_min: int
    quant_max: int
    ch_axis: int

    def __init__(self, spec: Spec, dtype: torch.dtype | None = None) -> None:
        named = torch_names(spec) | ({} if dtype is None else {"dtype": dtype})
        super().__init__(named["dtype"], spec.dynamic)
        self.spec = spec
        self.__dict__.update(named)
        self.observer = None if spec.dynamic else make_observer(spec, type(self).__name__)

    def forward(self, x: Tensor) -> Tensor:
        if self.observer is not None:
            self.observer.update(x)
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """(scale, zero_point), with one element per tensor or channel."""
        scale, zero_point = self._seen().qparams()
        return scale.reshape(-1), zero_point.reshape(-1).to(torch.int64)

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for a range, for subclasses that find it in another way."""
        scale, zero_point = choose_qparams(min_val, max_val, self.spec)
        return scale.reshape(-1), zero_point.reshape(-1).to(torch.int64)

    @property
    def min_val(self) -> Tensor:
        return self._seen().low

    @property
    def max_val(self) -> Tensor:
        return self._seen().high

    def reset_min_max_vals(self) -> None:
        """Forget what was seen."""
        self.observer = None if self.spec.dynamic else make_observer(self.spec, type(self).__name__)

    def _seen(self) -> Observer:
        if self.observer is None:
            raise StageError(f"{type(self).__name__}(is_dynamic=True): its scale is found for each input.")
        return self.observer


class SpecFactory(Spec):
    """A spec that makes its observer when it is called, as what is in a QConfig of torch.ao does."""

    __slots__ = ()

    def __call__(self) -> StandaloneObserver:
        return StandaloneObserver(Spec(**self._fields()))

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and all(getattr(other, name) == value for name, value in self._fields().items())

    __hash__ = Spec.__hash__


def with_factories(qconfig: QConfig) -> QConfig:
    """Return the same qconfig, so that `qconfig.activation()` and `qconfig.weight()` make observers."""
    changes: dict[str, Any] = {}
    for name in ("activation", "weight"):
        spec = getattr(qconfig, name)
        if isinstance(spec, Spec):
            changes[name] = SpecFactory(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)})
    return dataclasses.replace(qconfig, **changes)
