"""A converted model as an `nn.Module` that another runtime executes.

The module keeps the serialized ONNX graph; the runtime's session is made at the first call (again after deepcopy or
unpickling), with as many threads as torch has then. Inference only, on the CPU. Inputs and outputs share memory with
the runtime where it can.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fxquant.errors import ConfigError, FxQuantError
from fxquant.export.onnx import to_onnx

Array = NDArray[Any]


class RuntimeModule(nn.Module):
    """What the modules of all runtimes share. A subclass names its `engine` and gives `_open` and `_run`."""

    engine = ""
    package = ""
    gemm = True  # see to_onnx
    alone = True  # the model has no other session, whose threads would wait for the same cores

    def __init__(self, model: nn.Module, example_inputs: Any, example_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        caller = f"engine={self.engine!r}"
        if importlib.util.find_spec(self.package) is None:
            raise ConfigError(f"{caller} needs {self.package}. Install with: pip install fxquant[{self.engine}]")
        self.fixed_batch = ""
        try:
            graph, signature = to_onnx(
                model, example_inputs, example_kwargs, dynamic_batch=True, caller=caller, gemm=self.gemm
            )
        except ConfigError:
            raise
        except FxQuantError as error:
            # some models do arithmetic on their batch size; they still run, at that of the example
            self.fixed_batch = str(error).partition("\n")[2].strip()
            graph, signature = to_onnx(
                model, example_inputs, example_kwargs, dynamic_batch=False, caller=caller, gemm=self.gemm
            )
        self.wanted = [_wanted(value) for value in graph.graph.inputs]
        self._adapt(graph)
        self.onnx_bytes = serialize(graph, caller)
        self.signature = signature
        self._session: Any = None
        self._threads = 0
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.signature.flatten(args, kwargs))

    def refuses(self, tensors: list[Tensor]) -> str | None:
        """Why these cannot be run, if so: the graph was made for other sizes or dtypes."""
        for tensor, (dtype, sizes) in zip(tensors, self.wanted, strict=True):
            fits = tensor.dtype is dtype and tensor.device.type == "cpu" and tensor.dim() == len(sizes)
            if not fits or any(wanted not in (None, size) for size, wanted in zip(tensor.shape, sizes, strict=True)):
                return f"an input is {_shown(tensor)}; the example's was {dtype}, of sizes {sizes} (None is any)"
        return None

    def run(self, tensors: list[Tensor]) -> Any:
        """What the model returns for the tensors of a call."""
        if self._session is None or self._threads != torch.get_num_threads():
            self._threads = torch.get_num_threads()
            self._session = self._open(self._threads)
        try:
            # few steps here: after a run the caches are cold, and each costs several times what it does in a loop
            outputs = self._run(self._session, [tensor.detach().contiguous().numpy() for tensor in tensors])
        except Exception as error:  # the runtimes have errors of their own, derived from Exception
            raise self._explain(tensors, error) from error
        return self.signature.unflatten(outputs)

    def _adapt(self, graph: Any) -> None:
        """Change the ONNX graph in place, to what this runtime reads best."""

    def _open(self, threads: int) -> Any:
        """A session of the runtime on `self.onnx_bytes`."""
        raise NotImplementedError

    def _run(self, session: Any, arrays: list[Array]) -> list[Tensor]:
        raise NotImplementedError

    def _explain(self, tensors: list[Tensor], error: Exception) -> FxQuantError:
        shapes = ", ".join(_shown(tensor) for tensor in tensors)
        hint = ""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            hint = "\nIt runs on the CPU; an input is elsewhere. Call .cpu() on it."
        elif self.fixed_batch:
            hint = f"\nThe batch size of this model is fixed to that of the example inputs: {self.fixed_batch}"
        return FxQuantError(f"engine={self.engine!r} cannot run on inputs {shapes}.\n{error}{hint}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def extra_repr(self) -> str:
        return f"engine={self.engine!r}, {len(self.onnx_bytes) / 2**20:.1f} MiB"


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _wanted(value: Any) -> tuple[torch.dtype, tuple[int | None, ...]]:
    """The dtype and sizes of an input of an ONNX graph; None is any size."""
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    return torch.from_numpy(np.empty(0, value.dtype.numpy())).dtype, sizes


def serialize(graph: Any, caller: str) -> bytes:
    import onnx_ir as ir

    try:
        data: bytes = ir.to_proto(graph).SerializeToString()
    except ValueError as error:  # protobuf's limit
        raise FxQuantError(f"{caller}: the model is larger than the 2 GiB that ONNX takes in memory.") from error
    return data
