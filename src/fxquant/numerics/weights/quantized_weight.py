"""What is left of a weighted module after conversion: a holder of its integers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.config.spec import Spec
from fxquant.graph import torch_compat
from fxquant.graph.nibbles import pack, unpack
from fxquant.numerics.affine import dequantize
from fxquant.numerics.buffers import KeepsDtypes, own_tensors
from fxquant.numerics.checked_state import CheckedState
from fxquant.numerics.sampled import sampled
from fxquant.numerics.weights.readable import Readable, readable


class QuantizedWeight(KeepsDtypes, CheckedState):
    """Holds what is left of a weighted module: integer `weight`, its qparams, and the bias, whatever it is cast to.

    Graphs and kernels read the integers. `forward` is for the user's own code, where that runs: the float op on the
    dequantized weight.
    """

    shell: nn.Module  # the module it was, without its tensors

    weight: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None

    def __init__(self, kind: str, spec: Spec, tail: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.spec = spec
        self.tail = tail  # the shape of a row of a weight whose integers are two to a byte, see graph/nibbles.py

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weight, packed or not."""
        return tuple(self.stored.shape) if self.tail is None else (self.stored.shape[0], *self.tail)

    @property
    def stored(self) -> Tensor:
        """The weight as it is stored."""
        weight = self.held("weight")
        assert weight is not None
        return weight

    def put_scale(self, scale: Tensor) -> None:
        """Take the scale of the weight: see `scale_of`."""
        if isinstance(scale, nn.Parameter):
            self.register_parameter("weight_scale", scale)
        else:
            self.register_buffer("weight_scale", scale)

    def held(self, name: str) -> Tensor | None:
        """Return a tensor as it is stored: a buffer, or what took its place, such as a parameter."""
        found: Tensor | None = self._buffers[name] if name in self._buffers else getattr(self, name, None)
        return found

    @property
    def integers(self) -> Tensor:
        """The integers of the weight, each in an element of its own; made for the call where they are packed."""
        return self.stored if self.tail is None else unpack(self.stored, self.tail, self.spec.signed)

    def fit(self, state_dict: dict[str, object], prefix: str) -> None:
        given = state_dict.get(f"{prefix}weight")
        if isinstance(given, Tensor) and self._is_wide(given):
            state_dict[f"{prefix}weight"] = pack(given)
        for name, own in own_tensors(self).items():
            given = state_dict.get(f"{prefix}{name}")
            if isinstance(given, Tensor) and given.is_floating_point():
                state_dict[f"{prefix}{name}"] = given.to(own.dtype)  # also where it is assigned, not copied

    def misfits(self, state_dict: dict[str, object], prefix: str) -> Iterator[str]:
        for name, error in self._misfits(state_dict, prefix):
            yield f"{prefix}{name}: {error}"

    def _is_wide(self, given: Tensor) -> bool:
        """Tell whether a packed weight is given unpacked, by a model that was converted before they were packed."""
        return self.tail is not None and tuple(given.shape) == self.weight_shape and given.dtype == self.spec.dtype

    def _misfits(self, state_dict: dict[str, object], prefix: str) -> Iterator[tuple[str, str]]:
        """Yield what a state dict has that would be copied here and mean something else, by name."""
        ends = (self.spec.quant_min, self.spec.quant_max)
        for name, own in {**self._buffers, **self._parameters}.items():
            given = state_dict.get(prefix + name)
            if own is None or not isinstance(given, Tensor):
                continue
            wide = name == "weight" and self._is_wide(given)
            if given.dtype != own.dtype and not wide and not (given.is_floating_point() and own.is_floating_point()):
                dtypes = f"the state has {given.dtype}, this model {own.dtype}"
                yield name, f"{dtypes}. It is another model's, or not converted."
            elif not given.is_meta and given.numel():
                if name == "weight_scale" and not bool((given > 0).all()):
                    yield name, f"the scale of a weight is positive; the state has {float(given.min())}."
                if name == "weight" and self.tail is not None and not wide:
                    given = unpack(given, (2 * given.shape[-1],), self.spec.signed)
                if name in ("weight", "weight_zero_point") and not ends[0] <= given.min() <= given.max() <= ends[1]:
                    has = f"integers from {int(given.min())} to {int(given.max())}"
                    yield name, f"the state has {has}, this model takes {ends[0]} to {ends[1]}.{self._wider(given)}"

    def _wider(self, given: Tensor) -> str:
        """Return where integers that leave limits below those of a byte belong: with CPUs that take all of it."""
        if not self.spec.signed or self.spec.bits != 8 or int(given.min()) < -127:
            return ""
        return ' For weights of 8 bits, prepare this model with target="x86-vnni": it takes -127 to 127.'

    def __getattr__(self, name: str) -> Any:
        """Return what a graph that is written down or compiled reads is the plain tensor.

        Settings are those of the module that stood here: `out_features`, `stride`.
        """
        shell: nn.Module | None = self.__dict__.get("shell")
        if shell is not None and name in shell.__dict__ and not name.startswith("_"):
            return shell.__dict__[name]
        return self._for_code(name, super().__getattr__(name))

    def as_float(self, name: str) -> object:
        """Return the tensor of this name for code outside, where a float module stood."""
        value = self.dequantized(name)
        return readable(value, self, name) if _is_for_code(name, value) else value

    def _for_code(self, name: str, value: Any) -> object:
        if not _is_for_code(name, value):
            return value
        # one view as long as there is the tensor: some caches go by the id of what they are given
        views = self.__dict__.setdefault("_views", {})
        kept, view = views.get(name, (None, None))
        own = isinstance(view, Readable) and view.is_of(self)  # torch copies a parametrized module with its views
        if kept is not value or not own or view.data_ptr() != value.data_ptr():  # tensor.data = ...
            view = readable(value, self, name)
            views[name] = value, view
        return view

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_views", "_samples")}

    def stamp(self) -> object:
        """Another value after any of the tensors was written to, or replaced; equal before, for copies made of them.

        Of writes that torch does not count, those to the whole weight are seen.
        """
        tables = (self._parameters, self._buffers)
        if self._modules:  # a parametrization, say; to search for such takes longer than many kernels
            tables = (dict(self.named_parameters()), dict(self.named_buffers()))
        try:
            found = [(id(x), x._version, x.data_ptr()) for table in tables for x in table.values() if x is not None]
        except RuntimeError:  # inference tensors do not count writes
            return object()
        # the same tensors mean something else under a parametrization
        inside = [(path, id(part)) for path, part in self.named_modules()] if self._modules else []
        return found, self.sample("weight"), inside

    def sample(self, name: str) -> bytes:
        """Return a few bytes of a tensor, by which writes are seen that torch does not count."""
        tensor = self._buffers.get(name)
        if tensor is None:
            return b""
        samples = self.__dict__.setdefault("_samples", {})
        kept, pointer, view = samples.get(name, (None, 0, None))
        if kept is not tensor or pointer != tensor.data_ptr():
            view = sampled(tensor)
            samples[name] = tensor, tensor.data_ptr(), view
        return b"" if view is None else view.tobytes()

    @property
    def float_dtype(self) -> torch.dtype:
        """The dtype that the weight had in the float model."""
        shell: nn.Module | None = self.__dict__.get("shell")
        weight = None if shell is None else shell._parameters.get("weight")
        return torch.float32 if weight is None else weight.dtype

    def dequantized(self, name: str) -> Any:
        """Return the tensor of this name as code that reads a float module expects it."""
        if name == "weight":
            zero = self.weight_zero_point
            zero = torch.zeros_like(self.weight_scale, dtype=torch.int32) if zero is None else zero
            return dequantize(self.integers, self.weight_scale, zero, self.spec, self.float_dtype)
        scale, zero, bias = self.held("bias_scale"), self.held("bias_zero_point"), self.held("bias")
        if name == "bias" and scale is not None:
            given = None if bias is None or zero is None else (bias.to(torch.float32) - zero) * scale
            return None if given is None else given.to(self.float_dtype)
        return bias if name == "bias" else getattr(self, name)

    def in_float(self) -> nn.Module:
        """Return the module that stood here, on the float values of the integers."""
        # not by torch.func.functional_call, which refuses to be traced
        module, given = copy.copy(self.shell), self.shell._parameters
        module.__dict__["_parameters"] = {name: None for name, tensor in given.items() if tensor is None}
        module.__dict__.update({name: self.dequantized(name) for name, tensor in given.items() if tensor is not None})
        return module

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self.in_float()(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.weight_shape}, {self.spec}"


def scale_of(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale of a weight as a parameter that is not trained, if it has the dtype of the float model.

    Code asks `next(model.parameters())` for the device and the dtype of a model, and all else here may be integers.
    """
    return nn.Parameter(scale, requires_grad=False) if scale.dtype == dtype else scale


def _is_for_code(name: str, value: object) -> bool:
    """Tell whether a tensor is read by code as it runs, by one of the names that can be called."""
    if name not in ("weight", "bias") or type(value) is not Tensor or torch.compiler.is_compiling():
        return False
    return torch_compat.plain_mode()
