"""A converted graph that another runtime executes.

It keeps the serialized ONNX graph; the runtime's session is made at the first call (again after deepcopy or
unpickling), with as many threads as torch has then. Inference only, on the CPU. Inputs and outputs share memory with
the runtime where it can.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fxquant.errors import ConfigError, FxQuantError
from fxquant.export.onnx.export import to_onnx

if TYPE_CHECKING:
    import onnx_ir as ir

Array = NDArray[Any]
Session = TypeVar("Session")


class OutOfBounds(FxQuantError):
    """A call has integers that the runtime would misread; torch has an answer, or an error."""


class Runtime(ABC, Generic[Session]):
    """What all runtimes share; called like the model. A subclass names its `engine`, and gives `_open` and `_run`.

    Without `alone`, the model has other sessions, whose threads would wait for the same cores.
    """

    engine = ""
    package = ""
    bits = 64  # in which integers of 64 are computed
    gemm = True  # see to_onnx

    def __init__(
        self,
        model: nn.Module,
        example_inputs: object,
        example_kwargs: Mapping[str, object] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        caller = f"engine={self.engine!r}"
        if importlib.util.find_spec(self.package) is None:
            raise ConfigError(f"{caller} needs {self.package}. Install with: pip install 'fxquant[{self.engine}]'")
        self.alone = alone
        self.fixed_batch = ""
        try:
            graph, signature = to_onnx(
                model, example_inputs, example_kwargs, dynamic_batch=True, caller=caller, gemm=self.gemm
            )
        except ConfigError:
            raise
        except FxQuantError as error:
            # some models do arithmetic on their batch size; they still run, at that of the example
            self.fixed_batch = str(error)
            graph, signature = to_onnx(
                model, example_inputs, example_kwargs, dynamic_batch=False, caller=caller, gemm=self.gemm
            )
        self.wanted = [(_dtype(value, "input", caller), _sizes(value)) for value in graph.graph.inputs]
        for value in graph.graph.outputs:
            _dtype(value, "output", caller)
        self._adapt(graph)
        self.limits, self.counted = _guarded(graph, self.bits, caller)
        self.onnx_bytes = serialize(graph, caller)
        self.signature = signature
        self._session: Session | None = None
        self._threads = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.run(self.signature.flatten(args, kwargs))

    def refuses(self, tensors: list[Tensor]) -> str | None:
        """Tell why these cannot be run, if so: the graph was made for other sizes or dtypes, and for some samples."""
        batch = None
        for tensor, (dtype, sizes) in zip(tensors, self.wanted, strict=True):
            if tensor.dtype is not dtype or tensor.device.type != "cpu" or tensor.dim() != len(sizes):
                return self._unlike(tensor, dtype, sizes)
            for size, wanted in zip(tensor.shape, sizes, strict=True):
                batch = size if wanted is None and batch is None else batch
                if size != (batch if wanted is None else wanted) or (wanted is None and size == 0):
                    return self._unlike(tensor, dtype, sizes)
        return None

    def run(self, tensors: list[Tensor]) -> object:
        """Return what the model returns for the tensors of a call. What it cannot take raises `OutOfBounds`."""
        self._look(tensors)
        try:
            if self._session is None or self._threads != torch.get_num_threads():
                self._threads = torch.get_num_threads()
                self._session = self._open(self._threads)
            # few steps here: after a run the caches are cold, and each costs several times what it does in a loop
            outputs = self._run(self._session, [tensor.detach().contiguous().numpy() for tensor in tensors])
        except Exception as error:  # the runtimes have errors of their own, derived from Exception
            shown = ", ".join(_shown(tensor) for tensor in tensors)
            raise FxQuantError(f"engine={self.engine!r} cannot run on inputs {shown}.\n{error}") from error
        if self.counted and int(outputs.pop()):
            raise OutOfBounds("An index that it computes is out of bounds, or counts from the end.")
        return self.signature.unflatten(outputs)

    def _look(self, tensors: list[Tensor]) -> None:
        """Look whether inputs that are indices are in bounds."""
        for tensor, limits in zip(tensors, self.limits, strict=True):
            if limits is not None and tensor.numel():
                low, high = (int(end) for end in torch.aminmax(tensor.detach()))
                if low < limits[0] or high > limits[1]:
                    shown = low if low < limits[0] else high
                    raise OutOfBounds(f"An input holds {shown}, and {self.engine} is given {limits[0]} to {limits[1]}.")

    def _adapt(self, graph: ir.Model) -> None:
        """Change the ONNX graph in place, to what this runtime reads best."""

    @abstractmethod
    def _open(self, threads: int) -> Session:
        """Return a session of the runtime on `self.onnx_bytes`."""

    @abstractmethod
    def _run(self, session: Session, arrays: list[Array]) -> list[Tensor]:
        """Return the outputs of one call; several threads may be here."""

    def _unlike(self, tensor: Tensor, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> str:
        shown = ", ".join("batch" if size is None else str(size) for size in sizes)
        why = f" The batch is fixed: {self.fixed_batch}" if self.fixed_batch else ""
        return f"An input is {_shown(tensor)}, on {tensor.device}; the example's was ({shown}) {_name(dtype)}.{why}"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_session": None}


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {_name(tensor.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(value: ir.Value) -> tuple[int | None, ...]:
    """Return the sizes of an input of an ONNX graph; None is the batch."""
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def _dtype(value: ir.Value, what: str, caller: str) -> torch.dtype:
    """Return the dtype of an input or output of an ONNX graph, if it can pass between torch and a runtime."""
    try:
        return torch.from_numpy(np.empty(0, value.dtype.numpy())).dtype
    except TypeError as error:
        raise ConfigError(
            f"{caller}: {what} {value.name!r} is {value.dtype.name}, which numpy lacks. Let the model take and return "
            "float32, or use engine='onednn'."
        ) from error


def _guarded(graph: ir.Model, bits: int, caller: str) -> tuple[tuple[tuple[int, int] | None, ...], bool]:
    """Guard the indices of a graph: the limits of its inputs, and whether it has an output more."""
    from fxquant.engines.runtimes.guard_indices import guard_indices

    try:
        guards = guard_indices(graph.graph, bits)
    except FxQuantError as error:
        raise FxQuantError(f"{caller} cannot take this graph: {error}") from error
    return guards.limits, guards.counted


def serialize(graph: ir.Model, caller: str) -> bytes:
    import onnx_ir as ir

    try:
        data: bytes = ir.to_proto(graph).SerializeToString()
    except ValueError as error:  # protobuf's limit
        raise FxQuantError(f"{caller}: the model is larger than the 2 GiB that ONNX takes in memory.") from error
    return data


AnyRuntime: TypeAlias = Runtime[Any]
