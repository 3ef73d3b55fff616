"""The ONNX Runtime engine: a converted model in an `InferenceSession` on the CPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from fxquant.engines.onednn.pairs import overflows
from fxquant.engines.runtimes.runtime import Array, Runtime

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

log = logging.getLogger("fxquant")
_Session: TypeAlias = "tuple[ort.InferenceSession, list[str], list[str]]"  # with the names of inputs and outputs
_SLOW_FUSIONS = ["SkipLayerNormFusion"]  # add and layer norm in one kernel that takes several times as long as the two


class OnnxRuntime(Runtime["_Session"]):
    """Runs a converted graph in ONNX Runtime. See `Runtime`."""

    engine = package = "onnxruntime"
    wide = False  # whether sums of two products may overflow int16, as `_adapt` finds

    def _adapt(self, graph: ir.Model) -> None:
        from onnx_ir.passes import common

        from fxquant.engines.runtimes.wide import has_wide_products, part_weights
        from fxquant.export.onnx.loop_constants import move_weights_before_loops

        self.wide = overflows() and has_wide_products(graph.graph)
        move_weights_before_loops(graph.graph)
        if self.wide:
            part_weights(graph.graph)
        common.RemoveUnusedNodesPass()(graph)

    def _open(self, threads: int) -> _Session:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised
        if not self.alone:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # weight-only linears multiply in float, as the reference does; left alone they would quantize activations too
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if self.wide:  # weights become unsigned where pairs of products would overflow, for slower kernels that do not
            options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            session = self._session_with(options)
        except Exception as error:
            if not self.wide:
                raise
            # its rewrite to unsigned weights fails on some; without fusions all is right, in float
            log.info("onnxruntime multiplies in float: %s", str(error).strip())
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            session = self._session_with(options)
        return session, [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]

    def _session_with(self, options: ort.SessionOptions) -> ort.InferenceSession:
        import onnxruntime as ort

        return ort.InferenceSession(
            self.onnx_bytes, options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW_FUSIONS
        )

    def _run(self, session: _Session, arrays: list[Array]) -> list[Tensor]:
        # numpy arrays share memory both ways, and cost less per call than OrtValues or an IOBinding
        opened, inputs, outputs = session
        results = opened.run(outputs, dict(zip(inputs, arrays, strict=True)))
        return [torch.from_numpy(array) for array in results]
