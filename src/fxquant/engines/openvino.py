"""The OpenVINO engine: a converted model compiled for the CPU plugin, tuned for latency.

OpenVINO fuses more when it knows the shapes, so a model is compiled for each of the first few shapes that come, and
once for all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.engines.runtime_module import Array, RuntimeModule

_MOST_SHAPES = 4


class OpenVinoModule(RuntimeModule):
    """Runs a converted model in OpenVINO; called like the model itself. See `RuntimeModule`."""

    engine = package = "openvino"
    gemm = False  # it moves scales through the reshapes, and fails on some shapes

    def _adapt(self, graph: Any) -> None:
        """Zero points of zero are left out: OpenVINO computes some of them at run time, and then the op in float."""
        for node in graph.graph:
            if node.op_type == "DequantizeLinear" and len(node.inputs) == 3 and node.inputs[2] is not None:
                zero = node.inputs[2].const_value
                if zero is not None and not zero.numpy().any():
                    node.resize_inputs(2)

    def _open(self, threads: int) -> Any:
        return _Requests(self.onnx_bytes, threads)

    def _run(self, session: Any, arrays: list[Array]) -> list[Tensor]:
        # outputs are copied: the request's own memory is written again by the next call
        results = session.at(arrays).infer(arrays, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(results[index]) for index in range(len(results))]


class _Requests:
    """An inference request for each of the first few shapes, and one for the rest."""

    def __init__(self, onnx_bytes: bytes, threads: int) -> None:
        self.onnx_bytes = onnx_bytes
        self.settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            # where the CPU has it, OpenVINO would run all that is left in float in bfloat16
            "INFERENCE_PRECISION_HINT": "f32",
            # and would quantize the activations of weight-only linears
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self.made: dict[tuple[tuple[int, ...], ...], Any] = {}

    def at(self, arrays: list[Array]) -> Any:
        """The request for inputs of these shapes."""
        shapes = tuple(array.shape for array in arrays)
        found = self.made.get(shapes)
        if found is None and len(self.made) < _MOST_SHAPES:
            found = self.made[shapes] = self._compile(shapes)
        elif found is None:
            found = self.made.get(()) or self.made.setdefault((), self._compile(None))
        return found

    def _compile(self, shapes: tuple[tuple[int, ...], ...] | None) -> Any:
        import openvino as ov

        core = ov.Core()
        model = core.read_model(self.onnx_bytes)
        if shapes is not None and shapes:
            model.reshape({port.get_any_name(): list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
        return core.compile_model(model, "CPU", self.settings).create_infer_request()
