"""The OpenVINO engine: a converted model compiled for the CPU plugin, tuned for latency."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.engines.runtime_module import Array, RuntimeModule


class OpenVinoModule(RuntimeModule):
    """Runs a converted model in OpenVINO; called like the model itself. See `RuntimeModule`."""

    engine = package = "openvino"
    gemm = False  # it moves scales through the reshapes, and fails on some shapes

    def _open(self, threads: int) -> Any:
        import openvino as ov

        core = ov.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            # where the CPU has it, OpenVINO would run all that is left in float in bfloat16
            "INFERENCE_PRECISION_HINT": "f32",
            # and would quantize the activations of weight-only linears
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        return core.compile_model(core.read_model(self.onnx_bytes), "CPU", settings).create_infer_request()

    def _run(self, session: Any, arrays: list[Array]) -> list[Tensor]:
        # outputs are copied: the request's own memory is written again by the next call
        results = session.infer(arrays, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(results[index]) for index in range(len(results))]
