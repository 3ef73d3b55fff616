"""The ONNX Runtime engine: a converted model in an `InferenceSession` on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.engines.runtime import Array, Runtime

_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # add and layer norm in one kernel that takes several times as long as the two


class OnnxRuntime(Runtime):
    """Runs a converted graph in ONNX Runtime. See `Runtime`."""

    engine = package = "onnxruntime"

    def _adapt(self, graph: Any) -> None:
        from onnx_ir.passes import common

        from fxquant.export.loop_constants import move_weights_before_loops

        move_weights_before_loops(graph.graph)
        common.RemoveUnusedNodesPass()(graph)

    def _open(self, threads: int) -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        if not self.alone:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # weight-only linears multiply in float, as the reference does; left alone they would quantize activations too
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        session = ort.InferenceSession(
            self.onnx_bytes, options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW_FUSIONS
        )
        return session, [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]

    def _run(self, session: Any, arrays: list[Array]) -> list[Tensor]:
        # numpy arrays share memory both ways, and cost less per call than OrtValues or an IOBinding
        session, inputs, outputs = session
        results = session.run(outputs, dict(zip(inputs, arrays, strict=True)))
        return [torch.from_numpy(array) for array in results]
